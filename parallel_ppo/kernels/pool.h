/* Max-pooling 3x3, stride 2, padding 1, that remembers which of the nine won.
 *
 * The unpooled side has one border row above and one border pixel on the left, both of -infinity; where its side is odd, so are a row below and a
 * pixel on the right. The first largest wins, as in torch. The backward
 * pass asks for each unpooled pixel which windows chose it, so nothing is filled with zeros first and nothing is added in memory.
 */
#ifndef PARALLEL_PPO_POOL_H
#define PARALLEL_PPO_POOL_H

#include "vector.h"

/* One pooled row of P pixels from three unpooled rows that start at their border pixel, as it is and through ReLU. */
INLINE void pool_row(const float *above, const float *middle, const float *below, int P, int C, float *out, float *positive, uint8_t *index) {
    for (int c = 0; c < C; c += VL) {
        for (int x = 0; x < P; x++) {
            const float *rows[3] = {above, middle, below};
            vec best = v_set(-__builtin_inff());
            vec_index chosen = v_index(4);
            UNROLL for (int k = 0; k < 9; k++)
                v_take_larger(&best, &chosen, v_load(rows[k / 3] + (2 * x + k % 3) * C + c), v_index(k));
            v_store(out + x * C + c, best);
            v_store(positive + x * C + c, v_relu(best));
            v_index_store(index + x * C + c, chosen);
        }
    }
}

/* The unpooled rows 2r and 2r+1 (no border, 2P pixels each) of the gradient from the pooled rows r and r+1, `next` apart (`last`: there is no
 * r+1). */
INLINE void pool_row_backward(const float *g, const uint8_t *index, int P, int C, int next, int last, float *even, float *odd) {
    for (int c = 0; c < C; c += VL) {
        vec here = v_load(g + c), below = last ? v_zero() : v_load(g + next + c);
        vec_index chose_here = v_index_load(index + c), chose_below = last ? v_index(9) : v_index_load(index + next + c);
        for (int x = 0; x < P; x++) {
            const int o = (x + 1) * C + c;
            vec right = v_zero(), corner = v_zero();
            vec_index chose_right = v_index(9), chose_corner = v_index(9);
            if (x + 1 < P) {
                right = v_load(g + o);
                chose_right = v_index_load(index + o);
                if (!last) {
                    corner = v_load(g + next + o);
                    chose_corner = v_index_load(index + next + o);
                }
            }
            float *e = even + 2 * x * C + c, *d = odd + 2 * x * C + c;
            v_store(e, v_where_index(chose_here, v_index(4), here));
            v_store(e + C, v_add(v_where_index(chose_here, v_index(5), here), v_where_index(chose_right, v_index(3), right)));
            v_store(d, v_add(v_where_index(chose_here, v_index(7), here), v_where_index(chose_below, v_index(1), below)));
            v_store(d + C, v_add(v_add(v_where_index(chose_here, v_index(8), here), v_where_index(chose_right, v_index(6), right)),
                                 v_add(v_where_index(chose_below, v_index(2), below), v_where_index(chose_corner, v_index(0), corner))));
            here = right, chose_here = chose_right;
            below = corner, chose_below = chose_corner;
        }
    }
}

/* A whole image of P x P pooled pixels. Unpooled rows have W pixels and their border, pooled ones `row` numbers; `positive` points past its
 * border. */
INLINE void pool(const float *in, int W, int P, int C, int row, float *out, float *positive, int positive_row, uint8_t *index) {
    const int in_row = (W + 1) * C;
    for (int r = 0; r < P; r++) {
        const float *above = in + (size_t)2 * r * in_row;
        pool_row(above, above + in_row, above + 2 * in_row, P, C, out + (size_t)r * row, positive + (size_t)r * positive_row,
                 index + (size_t)r * row);
    }
}

INLINE void pool_backward(const float *g, const uint8_t *index, int W, int P, int C, int row, float *dy) {
    for (int r = 0; r < P; r++) {
        float *even = dy + (size_t)2 * r * W * C;
        pool_row_backward(g + (size_t)r * row, index + (size_t)r * row, P, C, row, r + 1 == P, even, even + W * C);
    }
}

/* Before anything is pooled: what no convolution writes then never wins. */
static void fill_unpooled(float *unpooled, size_t count) {
    for (size_t i = 0; i < count; i++) unpooled[i] = -__builtin_inff();
}

#endif
