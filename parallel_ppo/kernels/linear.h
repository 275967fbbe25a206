/* Products of matrices, and a linear layer straight from torch's [outputs][inputs] weights: samples are the lanes, so no weight is ever
 * transposed. Inputs are a multiple of 16, outputs of 64. Samples are padded with zeros to a multiple of 16; "transposed" means [feature][sample].
 */
#ifndef PARALLEL_PPO_LINEAR_H
#define PARALLEL_PPO_LINEAR_H

#include "vector.h"

/* sums[n] += over the rows of a[row][n] */
INLINE void add_rows(int rows, int N, const float *a, float *sums) {
    for (int n = 0; n < N; n += VL) {
        vec sum = v_load(sums + n);
        for (int r = 0; r < rows; r++) sum = v_add(sum, v_load(a + (size_t)r * N + n));
        v_store(sums + n, sum);
    }
}

/* out = g where the activation is positive, zero elsewhere */
INLINE void through_relu(size_t count, const float *activation, const float *g, float *out) {
    for (size_t i = 0; i < count; i += VL) v_store(out + i, v_where_positive(v_load(activation + i), v_load(g + i)));
}

INLINE int padded(int samples) { return (samples + 15) / 16 * 16; }

/* out[R][V vectors] = start + sum over `terms` of a[r a_row + t a_term] b[t b_term + vector]; without `start` from zero */
INLINE void tile_product(int R, int V, int terms, const float *a, size_t a_row, size_t a_term, const float *b, size_t b_term,
                         const float *start, size_t start_row, float *out, size_t out_row) {
    vec sum[12][4];
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < V; i++) sum[r][i] = start ? v_load(start + r * start_row + i * VL) : v_zero();
    for (int t = 0; t < terms; t++) {
        vec x[4];
        UNROLL for (int i = 0; i < V; i++) x[i] = v_load(b + t * b_term + i * VL);
        UNROLL for (int r = 0; r < R; r++) {
            const vec w = v_set(a[r * a_row + t * a_term]);
            UNROLL for (int i = 0; i < V; i++) sum[r][i] = v_fma(w, x[i], sum[r][i]);
        }
    }
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int i = 0; i < V; i++) v_store(out + r * out_row + i * VL, sum[r][i]);
}

/* Tiles of R rows as long as they fit, `left` being the rows that remain. */
#define ROWS_OF_TILES(R, V, FIT)                                                                                                          \
    for (int left; (left = rows - r, FIT); r += R)                                                                                        \
        tile_product(R, V, terms, a + r * a_row, a_row, a_term, b + l, b_term, start ? start + r * start_row + l : NULL, start_row,       \
                     out + r * out_row + l, out_row)

/* out[rows][lanes] likewise, for any number of rows and any multiple of 16 lanes. `start` may be `out`, to go on with the sums that are there,
 * or one row (`start_row` 0), or NULL. Tiles are as large as their sums fit into registers. */
static __attribute__((noinline)) void matrix_product(int rows, int lanes, int terms, const float *a, size_t a_row, size_t a_term, const float *b,
                                              size_t b_term, const float *start, size_t start_row, float *out, size_t out_row) {
    int l = 0;
    for (; VL == 16 && l + 64 <= lanes; l += 64) {
        int r = 0;
        ROWS_OF_TILES(4, 4, left >= 4);
        ROWS_OF_TILES(1, 4, left >= 1);
    }
    for (; l < lanes; l += 16) {
        int r = 0;
        if (VL == 16) {
            ROWS_OF_TILES(8, 1, left >= 8);
            ROWS_OF_TILES(4, 1, left >= 4);
            ROWS_OF_TILES(1, 1, left >= 1);
        } else { /* 4 and 4 are faster than 6 and twice 1 */
            ROWS_OF_TILES(6, 2, left >= 10 || left == 6);
            ROWS_OF_TILES(5, 2, left == 9 || left == 5);
            ROWS_OF_TILES(4, 2, left >= 4);
            ROWS_OF_TILES(3, 2, left == 3);
            ROWS_OF_TILES(2, 2, left == 2);
            ROWS_OF_TILES(1, 2, left == 1);
        }
    }
}

/* out[column][row] = in[row][column], in blocks narrow enough for rows that share one cache set */
static void transpose(const float *in, int rows, int columns, size_t in_row, float *out, size_t out_row) {
    for (int r = 0; r < rows; r += 8)
        for (int c = 0; c < columns; c += 8)
            for (int i = c; i < c + 8 && i < columns; i++)
                for (int j = r; j < r + 8 && j < rows; j++) out[i * out_row + j] = in[j * in_row + i];
}

enum { TERMS = 128, PANEL = 64 }; /* samples and inputs that stay in the first-level cache while all outputs pass */

/* Of `count` inputs or outputs, those of the panel from `k` on. */
INLINE int panel_width(int count, int k) { return count % PANEL == 0 || count - k > PANEL ? PANEL : count - k; }

/* Floats of x_transposed below. */
INLINE size_t linear_scratch(int samples, int inputs, int outputs) {
    const size_t widest = (size_t)(inputs > outputs ? inputs : outputs) * padded(samples);
    return widest > TERMS * PANEL ? widest : TERMS * PANEL;
}

/* x [samples][inputs] -> out [samples][outputs]; x_transposed and z_transposed are scratch */
INLINE void linear_forward(int inputs, int outputs, const float *x, int samples, const float *w, const float *bias, int relu,
                           float *x_transposed, float *z_transposed, float *out) {
    const int lanes = padded(samples);
    if (lanes > samples) memset(x_transposed, 0, (size_t)inputs * lanes * sizeof(float));
    transpose(x, samples, inputs, inputs, x_transposed, lanes);
    matrix_product(outputs, lanes, inputs, w, inputs, 1, x_transposed, lanes, NULL, 0, z_transposed, lanes);
    for (int b = 0; b < samples; b++) {
        for (int n = 0; n < outputs; n++) {
            const float z = z_transposed[(size_t)n * lanes + b] + bias[n];
            out[(size_t)b * outputs + n] = relu && z < 0 ? 0 : z;
        }
    }
}

/* x [samples][inputs] and the transposed g [outputs][lanes] -> dw [outputs][inputs]; `scratch` has TERMS * PANEL floats. */
INLINE void weight_gradient(int inputs, int outputs, const float *x, int samples, const float *g, int lanes, float *scratch, float *dw) {
    for (int k = 0; k < inputs; k += PANEL) {
        const int width = panel_width(inputs, k);
        for (int b = 0; b < samples; b += TERMS) { /* rows 8 KB apart would share one cache set: copy them together */
            const int terms = samples - b < TERMS ? samples - b : TERMS;
            for (int t = 0; t < terms; t++) memcpy(scratch + t * width, x + (size_t)(b + t) * inputs + k, width * sizeof(float));
            matrix_product(outputs, width, terms, g + b, lanes, 1, scratch, width, b ? dw + k : NULL, inputs, dw + k, inputs);
        }
    }
}

/* w [outputs][inputs] and the transposed g [outputs][lanes] -> the transposed derivative in the inputs, [inputs][lanes]; any sizes */
INLINE void input_gradient(int inputs, int outputs, const float *w, const float *g, int lanes, float *by_inputs) {
    float panel[PANEL * PANEL] __attribute__((aligned(64)));
    for (int k = 0; k < inputs; k += PANEL)
        for (int n = 0; n < outputs; n += PANEL) {
            const int width = panel_width(inputs, k), height = panel_width(outputs, n);
            float *sums = by_inputs + (size_t)k * lanes;
            for (int t = 0; t < height; t++) memcpy(panel + t * width, w + (size_t)(n + t) * inputs + k, width * sizeof(float));
            matrix_product(width, lanes, height, panel, 1, width, g + (size_t)n * lanes, lanes, n ? sums : NULL, lanes, sums, lanes);
        }
}

/* Of the same x and out: dout -> dw, db, dx; with `x_relu`, dx goes on through the ReLU that made x. */
INLINE void linear_backward(int inputs, int outputs, const float *x, int samples, const float *w, const float *out, const float *dout,
                            int relu, int x_relu, float *x_transposed, float *z_transposed, float *dw, float *db, float *dx) {
    const int lanes = padded(samples);
    float *const g = x_transposed; /* [samples][outputs], until it is transposed */
    if (relu) through_relu((size_t)samples * outputs, out, dout, g);
    else memcpy(g, dout, (size_t)samples * outputs * sizeof(float));
    memset(db, 0, outputs * sizeof(float));
    add_rows(samples, outputs, g, db);
    if (lanes > samples) memset(z_transposed, 0, (size_t)outputs * lanes * sizeof(float));
    transpose(g, samples, outputs, outputs, z_transposed, lanes);
    weight_gradient(inputs, outputs, x, samples, z_transposed, lanes, x_transposed, dw);
    input_gradient(inputs, outputs, w, z_transposed, lanes, x_transposed);
    transpose(x_transposed, inputs, samples, lanes, dx, inputs);
    if (x_relu) through_relu((size_t)samples * inputs, x, dx, dx);
}

#endif
