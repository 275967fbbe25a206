/* The transforms of winograd.h (which has the formulas and the layouts), strip by strip: a strip is one row of tiles. */
#ifndef PARALLEL_PPO_WINOGRAD_STRIPS_H
#define PARALLEL_PPO_WINOGRAD_STRIPS_H

#include "vector.h"

#ifndef CHUNK
#define CHUNK 16 /* tiles that go through the 36 products together; a multiple of 16 */
#endif
#define POSITIONS 36
#define STRIDE(C) (CHUNK * (C) + 16) /* between positions; not a power of two, which would put them all in one cache set */

/* What the forward pass does with its sum y: `out` = y; = relu(y); = skip + y; or skip += y and `out` = relu(skip). */
enum { STORE, STORE_RELU, STORE_SUM, STORE_SUM_RELU };
/* What the backward pass does with dx, where the input went through a ReLU or was added to something. */
enum { GRAD, GRAD_MASK, GRAD_MASK_ADD };

/* ---- the four one-dimensional transforms ---- */

INLINE void transform_input(const vec d[6], vec r[6]) { /* r = B' d */
    const vec four = v_set(4.0f), five = v_set(5.0f), two = v_set(2.0f);
    vec a = v_fnma(four, d[2], d[4]), b = v_fnma(four, d[1], d[3]);
    vec c = v_sub(d[4], d[2]), e = v_sub(d[3], d[1]);
    r[0] = v_fma(four, d[0], v_fnma(five, d[2], d[4]));
    r[1] = v_add(a, b);
    r[2] = v_sub(a, b);
    r[3] = v_fma(two, e, c);
    r[4] = v_fnma(two, e, c);
    r[5] = v_fma(four, d[1], v_fnma(five, d[3], d[5]));
}

INLINE void transform_output(const vec m[6], vec y[4]) { /* y = A' m */
    const vec two = v_set(2.0f), four = v_set(4.0f), eight = v_set(8.0f);
    vec s = v_add(m[1], m[2]), d = v_sub(m[1], m[2]);
    vec t = v_add(m[3], m[4]), e = v_sub(m[3], m[4]);
    y[0] = v_add(v_add(m[0], s), t);
    y[1] = v_fma(two, e, d);
    y[2] = v_fma(four, t, s);
    y[3] = v_add(v_fma(eight, e, d), m[5]);
}

INLINE void transform_output_transposed(const vec y[4], vec m[6]) { /* m = A y */
    const vec two = v_set(2.0f), four = v_set(4.0f);
    vec e = v_add(y[0], y[2]), o = v_add(y[1], y[3]);
    vec f = v_fma(four, y[2], y[0]), p = v_fma(four, y[3], y[1]);
    m[0] = y[0];
    m[1] = v_add(e, o);
    m[2] = v_sub(e, o);
    m[3] = v_fma(two, p, f);
    m[4] = v_fnma(two, p, f);
    m[5] = y[3];
}

INLINE void transform_input_transposed(const vec r[6], vec d[6]) { /* d = B r */
    const vec four = v_set(4.0f), five = v_set(5.0f), two = v_set(2.0f);
    vec s = v_add(r[1], r[2]), e = v_sub(r[1], r[2]);
    vec t = v_add(r[3], r[4]), f = v_sub(r[3], r[4]);
    d[0] = v_mul(four, r[0]);
    d[1] = v_fnma(two, f, v_mul(four, v_sub(r[5], e)));
    d[2] = v_sub(v_fnma(five, r[0], v_zero()), v_fma(four, s, t));
    d[3] = v_fnma(five, r[5], v_fma(two, f, e));
    d[4] = v_add(v_add(r[0], s), t);
    d[5] = r[5];
}

/* ---- a strip (one row of tiles) into and out of the transformed domain ----
 *
 * The six lines of positions are transformed in three pairs that share their sums; a pair, [12][tiles][C], stays near from one transform through
 * the product to the next. On the way in, lines are made from the activation's rows directly; on the way out, all six wait in
 * `half` ([C/VL][6][W][VL]) or `columns` ([C/VL][6][W+2][VL]).
 */

#define PAIRS 3
#define PAIR_SIZE(C) (12 * STRIDE(C))
#define COLUMNS_SIZE(W, C) (6 * ((W) + 2) * (C))
#define HALF_SIZE(W, C) (6 * (W) * (C))
static const int PAIR_LINE[PAIRS][2] = {{0, 5}, {1, 2}, {3, 4}};

/* Two elements of transform_input, from the pixel at `p` and the five below it. */
INLINE void input_pair(int pair, const float *p, int row, vec *a, vec *b) {
    const vec four = v_set(4.0f), five = v_set(5.0f), two = v_set(2.0f);
    vec d1 = v_load(p + row), d2 = v_load(p + 2 * row), d3 = v_load(p + 3 * row), d4 = v_load(p + 4 * row);
    if (pair == 0) {
        *a = v_fma(four, v_load(p), v_fnma(five, d2, d4));
        *b = v_fma(four, d1, v_fnma(five, d3, v_load(p + 5 * row)));
    } else if (pair == 1) {
        vec even = v_fnma(four, d2, d4), odd = v_fnma(four, d1, d3);
        *a = v_add(even, odd);
        *b = v_sub(even, odd);
    } else {
        vec even = v_sub(d4, d2), odd = v_sub(d3, d1);
        *a = v_fma(two, odd, even);
        *b = v_fnma(two, odd, even);
    }
}

/* Two elements of transform_output_transposed, from the pixel at `p` and the three below it. */
INLINE void gradient_pair(int pair, const float *p, int row, vec *a, vec *b) {
    const vec two = v_set(2.0f), four = v_set(4.0f);
    vec y0 = v_load(p), y3 = v_load(p + 3 * row);
    if (pair == 0) {
        *a = y0;
        *b = y3;
        return;
    }
    vec y1 = v_load(p + row), y2 = v_load(p + 2 * row);
    if (pair == 1) {
        vec even = v_add(y0, y2), odd = v_add(y1, y3);
        *a = v_add(even, odd);
        *b = v_sub(even, odd);
    } else {
        vec even = v_fma(four, y2, y0), odd = v_fma(four, y3, y1);
        *a = v_fma(two, odd, even);
        *b = v_fnma(two, odd, even);
    }
}

INLINE void strip_input_pair(const float *in, int W, int C, int pair, float *v) {
    const int row = (W + 2) * C;
    for (int c = 0; c < C; c += VL) {
        vec a[6], b[6], r[6];
        input_pair(pair, in + c, row, &a[4], &b[4]);
        input_pair(pair, in + C + c, row, &a[5], &b[5]);
        for (int t = 0; t < W / 4; t++) {
            float *to = v + t * C + c;
            a[0] = a[4], a[1] = a[5], b[0] = b[4], b[1] = b[5];
            UNROLL for (int j = 2; j < 6; j++) input_pair(pair, in + (4 * t + j) * C + c, row, &a[j], &b[j]);
            transform_input(a, r);
            UNROLL for (int j = 0; j < 6; j++) v_store(to + j * STRIDE(C), r[j]);
            transform_input(b, r);
            UNROLL for (int j = 0; j < 6; j++) v_store(to + (6 + j) * STRIDE(C), r[j]);
        }
    }
}

INLINE void strip_gradient_pair(const float *dy, int W, int C, int pair, float *m) {
    for (int c = 0; c < C; c += VL) {
        for (int t = 0; t < W / 4; t++) {
            vec a[4], b[4], r[6];
            float *to = m + t * C + c;
            UNROLL for (int j = 0; j < 4; j++) gradient_pair(pair, dy + (4 * t + j) * C + c, W * C, &a[j], &b[j]);
            transform_output_transposed(a, r);
            UNROLL for (int j = 0; j < 6; j++) v_store(to + j * STRIDE(C), r[j]);
            transform_output_transposed(b, r);
            UNROLL for (int j = 0; j < 6; j++) v_store(to + (6 + j) * STRIDE(C), r[j]);
        }
    }
}

/* A pair of lines; `in` is the first of the six padded rows, `v` the strip's first tile. */
INLINE void strip_input(const float *in, int W, int C, int pair, float *v) {
    if (pair == 0) strip_input_pair(in, W, C, 0, v);
    else if (pair == 1) strip_input_pair(in, W, C, 1, v);
    else strip_input_pair(in, W, C, 2, v);
}

/* Likewise from `dy`, the first of four gradient rows. */
INLINE void strip_gradient(const float *dy, int W, int C, int pair, float *m) {
    if (pair == 0) strip_gradient_pair(dy, W, C, 0, m);
    else if (pair == 1) strip_gradient_pair(dy, W, C, 1, m);
    else strip_gradient_pair(dy, W, C, 2, m);
}

/* The point 1 reaches all 16 outputs with weight 1, so the bias is added there, once. */
INLINE void strip_output(const float *m, int W, int C, int i, const float *bias, float *half) {
    for (int c = 0; c < C; c += VL) {
        const vec b = i == 1 ? v_load(bias + c) : v_zero();
        float *line = half + ((size_t)c * 6 + i * VL) * W;
        for (int t = 0; t < W / 4; t++) {
            vec r[6], y[4];
            UNROLL for (int j = 0; j < 6; j++) r[j] = v_load(m + j * STRIDE(C) + t * C + c);
            r[1] = v_add(r[1], b);
            transform_output(r, y);
            UNROLL for (int j = 0; j < 4; j++) v_store(line + (4 * t + j) * VL, y[j]);
        }
    }
}

/* Whether row `i` of the strip `row` is part of the image; known when compiled where all of them are. */
INLINE int in_image(int row, int i, int W, int valid) { return valid == W || 4 * row + i < valid; }

/* `out` points at the first of the four rows, past any border; `skip` is [4][W][C]. */
INLINE void strip_rows(const float *half, int W, int valid, int C, int row, int mode, float *skip, float *out, int out_row) {
    for (int c = 0; c < C; c += VL) {
        const float *from = half + (size_t)c * 6 * W;
        for (int x = 0; x < valid; x++) {
            vec r[6], y[4];
            UNROLL for (int i = 0; i < 6; i++) r[i] = v_load(from + (i * W + x) * VL);
            transform_output(r, y);
            UNROLL for (int i = 0; i < 4; i++) {
                if (!in_image(row, i, W, valid)) continue;
                float *s = skip + ((size_t)i * W + x) * C + c;
                if (mode == STORE_SUM || mode == STORE_SUM_RELU) y[i] = v_add(y[i], v_load(s));
                if (mode == STORE_SUM_RELU) v_store(s, y[i]);
                if (mode == STORE_RELU || mode == STORE_SUM_RELU) y[i] = v_relu(y[i]);
                v_store(out + (size_t)i * out_row + x * C + c, y[i]);
            }
        }
    }
}

/* Adds up tiles that overlap along the strip. */
INLINE void strip_input_transposed(const float *v, int W, int C, int i, float *columns) {
    for (int c = 0; c < C; c += VL) {
        vec carried0 = v_zero(), carried1 = v_zero();
        float *line = columns + ((size_t)c * 6 + i * VL) * (W + 2);
        for (int t = 0; t < W / 4; t++) {
            vec r[6], d[6];
            UNROLL for (int j = 0; j < 6; j++) r[j] = v_load(v + j * STRIDE(C) + t * C + c);
            transform_input_transposed(r, d);
            v_store(line + (4 * t + 0) * VL, v_add(carried0, d[0]));
            v_store(line + (4 * t + 1) * VL, v_add(carried1, d[1]));
            v_store(line + (4 * t + 2) * VL, d[2]);
            v_store(line + (4 * t + 3) * VL, d[3]);
            carried0 = d[4];
            carried1 = d[5];
        }
        v_store(line + W * VL, carried0);
    }
}

INLINE void finish_gradient(vec d, const float *act, float *dx, int mode) {
    if (mode != GRAD) d = v_where_positive(v_load(act), d);
    if (mode == GRAD_MASK_ADD) d = v_add(v_load(dx), d);
    v_store(dx, d);
}

/* Adds up strips that overlap, in `carry` ([C/VL][2][W+2][VL]). `act` is the first of the six padded rows, `dx` the whole gradient image; `row` is
 * the strip's place in it. */
INLINE void strip_columns_transposed(const float *columns, int W, int valid, int C, int row, const float *act, int mode, float *carry,
                                     float *dx) {
    const int act_row = (W + 2) * C, dx_row = W * C;
    for (int c = 0; c < C; c += VL) {
        const float *from = columns + (size_t)c * 6 * (W + 2);
        for (int x = 1; x <= valid; x++) {
            vec r[6], d[6];
            const float *a = act + x * C + c;
            float *g = dx + (ptrdiff_t)(4 * row - 1) * dx_row + (x - 1) * C + c;
            float *first = carry + (size_t)c * 2 * (W + 2) + x * VL, *second = first + (W + 2) * VL;
            UNROLL for (int i = 0; i < 6; i++) r[i] = v_load(from + (i * (W + 2) + x) * VL);
            transform_input_transposed(r, d);
            if (row > 0) {
                finish_gradient(v_add(v_load(first), d[0]), a, g, mode);
                d[1] = v_add(v_load(second), d[1]);
            }
            finish_gradient(d[1], a + act_row, g + dx_row, mode);
            if (in_image(row, 1, W, valid)) finish_gradient(d[2], a + 2 * act_row, g + 2 * dx_row, mode);
            if (in_image(row, 2, W, valid)) finish_gradient(d[3], a + 3 * act_row, g + 3 * dx_row, mode);
            if (4 * row + 4 == W) {
                if (in_image(row, 3, W, valid)) finish_gradient(d[4], a + 4 * act_row, g + 4 * dx_row, mode);
            } else {
                v_store(first, d[4]);
                v_store(second, d[5]);
            }
        }
    }
}

#endif
