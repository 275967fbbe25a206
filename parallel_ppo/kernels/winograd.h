/* 3x3 convolution with padding 1, by Winograd's F(4x4, 3x3): forward, and backward by the exact transpose.
 *
 * With the interpolation points 0, 1, -1, 2, -2, infinity, a 4x4 tile of outputs is  Y = A' [ (G w G') . (B' x B) ] A,  where x is the
 * 6x6 tile of inputs around it and "." multiplies each of the 36 positions, summed over input channels: 36 products for 16 outputs where the
 * plain sum takes 144. The transpose of each step gives the gradients, and M = A dY A' serves both:
 *     dU = sum over tiles of (B' x B) M,    dw = G' dU G,    dx = B (U' M) B'  (tiles overlap by two and are added).
 * Padding an activation once with a border of zeros means no tile needs a special case.
 *
 * Layouts: an activation is [H+2][W+2][C]; a gradient is [H][W][C]; a transformed chunk is [36][tiles][C] with a stride that keeps
 * the 36 positions out of one cache set; transformed weights are [36][K][N].
 */
#ifndef PARALLEL_PPO_WINOGRAD_H
#define PARALLEL_PPO_WINOGRAD_H

#include "vector.h"

#ifndef CHUNK
#define CHUNK 32 /* tiles that go through the 36 products together; a multiple of 16 */
#endif
#define POSITIONS 36
#define STRIDE(C) (CHUNK * (C) + 16)
#define MAX_WIDTH 34

enum { STORE, STORE_RELU, STORE_RESIDUAL };  /* what the forward pass does with its sum */
enum { GRAD, GRAD_MASK, GRAD_MASK_ADD };     /* what the backward pass does with dx */

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

/* ---- a row of tiles into and out of the transformed chunk ---- */

/* `in` is the first of the six padded rows; `v` the row's first tile in the chunk. */
INLINE void row_input(const float *in, int W, int C, int relu, float *v) {
    float columns[6 * MAX_WIDTH * VL] __attribute__((aligned(64)));
    for (int c = 0; c < C; c += VL) {
        for (int x = 0; x < W + 2; x++) {
            vec d[6], r[6];
            UNROLL for (int i = 0; i < 6; i++) {
                d[i] = v_load(in + ((size_t)i * (W + 2) + x) * C + c);
                if (relu) d[i] = v_relu(d[i]);
            }
            transform_input(d, r);
            UNROLL for (int i = 0; i < 6; i++) v_store(columns + (i * MAX_WIDTH + x) * VL, r[i]);
        }
        for (int t = 0; t < W / 4; t++) {
            for (int i = 0; i < 6; i++) {
                vec d[6], r[6];
                UNROLL for (int j = 0; j < 6; j++) d[j] = v_load(columns + (i * MAX_WIDTH + 4 * t + j) * VL);
                transform_input(d, r);
                UNROLL for (int j = 0; j < 6; j++) v_store(v + (size_t)(i * 6 + j) * STRIDE(C) + t * C + c, r[j]);
            }
        }
    }
}

/* `out` and `residual` point at the first of the four rows, past any border. The point 1 reaches all 16 outputs with weight 1, so the
 * bias is added there once. */
INLINE void row_output(const float *m, int W, int C, const float *bias, int mode, const float *residual, int residual_row, float *out,
                       int out_row) {
    for (int c = 0; c < C; c += VL) {
        const vec b = v_load(bias + c);
        for (int t = 0; t < W / 4; t++) {
            vec half[4][6];
            UNROLL for (int j = 0; j < 6; j++) {
                vec column[6], y[4];
                UNROLL for (int i = 0; i < 6; i++) column[i] = v_load(m + (size_t)(i * 6 + j) * STRIDE(C) + t * C + c);
                if (j == 1) column[1] = v_add(column[1], b);
                transform_output(column, y);
                UNROLL for (int i = 0; i < 4; i++) half[i][j] = y[i];
            }
            UNROLL for (int i = 0; i < 4; i++) {
                vec y[4];
                transform_output(half[i], y);
                UNROLL for (int j = 0; j < 4; j++) {
                    if (mode == STORE_RELU) y[j] = v_relu(y[j]);
                    if (mode == STORE_RESIDUAL) y[j] = v_add(y[j], v_load(residual + (size_t)i * residual_row + (4 * t + j) * C + c));
                    v_store(out + (size_t)i * out_row + (4 * t + j) * C + c, y[j]);
                }
            }
        }
    }
}

/* `dy` is the first of four gradient rows. */
INLINE void row_output_transposed(const float *dy, int W, int C, float *m) {
    for (int c = 0; c < C; c += VL) {
        for (int t = 0; t < W / 4; t++) {
            vec half[6][4];
            UNROLL for (int j = 0; j < 4; j++) {
                vec column[4], r[6];
                UNROLL for (int i = 0; i < 4; i++) column[i] = v_load(dy + ((size_t)i * W + 4 * t + j) * C + c);
                transform_output_transposed(column, r);
                UNROLL for (int i = 0; i < 6; i++) half[i][j] = r[i];
            }
            UNROLL for (int i = 0; i < 6; i++) {
                vec r[6];
                transform_output_transposed(half[i], r);
                UNROLL for (int j = 0; j < 6; j++) v_store(m + (size_t)(i * 6 + j) * STRIDE(C) + t * C + c, r[j]);
            }
        }
    }
}

INLINE void finish_gradient(vec d, const float *act, float *dx, int mode) {
    if (mode != GRAD) d = v_where_positive(v_load(act), d);
    if (mode == GRAD_MASK_ADD) d = v_add(v_load(dx), d);
    v_store(dx, d);
}

/* Adds up the overlapping tiles: along the row in registers, between rows of tiles in `carry` ([2][W+2][C]).
 * `act` is the first of the six padded rows, `dx` the whole gradient image; `row` is the row of tiles inside it. */
INLINE void row_input_transposed(const float *v, int W, int C, int row, const float *act, int mode, float *carry, float *dx) {
    float columns[6 * MAX_WIDTH * VL] __attribute__((aligned(64)));
    const int act_row = (W + 2) * C;
    for (int c = 0; c < C; c += VL) {
        for (int i = 0; i < 6; i++) {
            vec carried0 = v_zero(), carried1 = v_zero();
            float *line = columns + i * MAX_WIDTH * VL;
            for (int t = 0; t < W / 4; t++) {
                vec r[6], d[6];
                UNROLL for (int j = 0; j < 6; j++) r[j] = v_load(v + (size_t)(i * 6 + j) * STRIDE(C) + t * C + c);
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
        for (int x = 1; x <= W; x++) {
            vec r[6], d[6];
            float *above = carry + x * C + c, *second = above + (W + 2) * C;
            const float *a = act + x * C + c;
            float *g = dx + ((ptrdiff_t)(4 * row - 1) * W + x - 1) * C + c;
            UNROLL for (int i = 0; i < 6; i++) r[i] = v_load(columns + (i * MAX_WIDTH + x) * VL);
            transform_input_transposed(r, d);
            if (row > 0) {
                finish_gradient(v_add(v_load(above), d[0]), a, g, mode);
                d[1] = v_add(v_load(second), d[1]);
            }
            finish_gradient(d[1], a + act_row, g + W * C, mode);
            finish_gradient(d[2], a + 2 * act_row, g + 2 * W * C, mode);
            finish_gradient(d[3], a + 3 * act_row, g + 3 * W * C, mode);
            if (4 * row + 4 == W) {
                finish_gradient(d[4], a + 4 * act_row, g + 4 * W * C, mode);
            } else {
                v_store(above, d[4]);
                v_store(second, d[5]);
            }
        }
    }
}

/* ---- the products ---- */

/* c[rows][N] = a[rows][K] b[K][N], the N of one block of `columns` vectors */
INLINE void product_block(const float *a, const float *b, float *c, int rows, int columns, int K, int N) {
    vec sum[16][2];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int n = 0; n < columns; n++) sum[r][n] = v_zero();
    for (int k = 0; k < K; k++) {
        vec w[2];
        UNROLL for (int n = 0; n < columns; n++) w[n] = v_load(b + k * N + n * VL);
        UNROLL for (int r = 0; r < rows; r++) {
            vec x = v_set(a[r * K + k]);
            UNROLL for (int n = 0; n < columns; n++) sum[r][n] = v_fma(x, w[n], sum[r][n]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int n = 0; n < columns; n++) v_store(c + r * N + n * VL, sum[r][n]);
}

INLINE void product(const float *a, const float *b, float *c, int tiles, int K, int N) {
    const int columns = N / VL >= 2 ? 2 : 1;
    const int rows = VL == 8 ? 4 : columns == 1 ? 16 : 8;
    for (int n = 0; n < N; n += columns * VL) {
        int t = 0;
        for (; t + rows <= tiles; t += rows) product_block(a + t * K, b + n, c + t * N + n, rows, columns, K, N);
        for (; t < tiles; t += 4) product_block(a + t * K, b + n, c + t * N + n, 4, columns, K, N);
    }
}

/* du[K][N] += sum over tiles of a[tile][K] b[tile][N] */
INLINE void outer(const float *a, const float *b, float *du, int tiles, int K, int N) {
    const int columns = N / VL >= 2 ? 2 : 1;
    const int rows = VL == 8 ? 4 : columns == 1 ? 16 : 8;
    for (int n = 0; n < N; n += columns * VL) {
        for (int k = 0; k < K; k += rows) {
            vec sum[16][2];
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int j = 0; j < columns; j++) sum[r][j] = v_load(du + (k + r) * N + n + j * VL);
            for (int t = 0; t < tiles; t++) {
                vec y[2];
                UNROLL for (int j = 0; j < columns; j++) y[j] = v_load(b + t * N + n + j * VL);
                UNROLL for (int r = 0; r < rows; r++) {
                    vec x = v_set(a[t * K + k + r]);
                    UNROLL for (int j = 0; j < columns; j++) sum[r][j] = v_fma(x, y[j], sum[r][j]);
                }
            }
            UNROLL for (int r = 0; r < rows; r++)
                UNROLL for (int j = 0; j < columns; j++) v_store(du + (k + r) * N + n + j * VL, sum[r][j]);
        }
    }
}

/* ---- whole layers over `images` images ---- */

/* `out` points past its border; out_row and out_image are its strides. */
INLINE void convolution(int images, int W, int K, int N, const float *in, int relu, const float *u, const float *bias, int mode,
                        const float *residual, float *out, int out_row, size_t out_image, float *scratch) {
    const int row_tiles = W / 4, rows = images * row_tiles, chunk_rows = CHUNK / row_tiles;
    const int in_row = (W + 2) * K, residual_row = (W + 2) * N;
    const size_t in_image = (size_t)(W + 2) * in_row, residual_image = (size_t)(W + 2) * residual_row;
    float *v = scratch, *m = v + POSITIONS * STRIDE(K);
    for (int first = 0; first < rows; first += chunk_rows) {
        const int count = rows - first < chunk_rows ? rows - first : chunk_rows;
        for (int i = 0; i < count; i++) {
            const int image = (first + i) / row_tiles, row = (first + i) % row_tiles;
            row_input(in + image * in_image + (size_t)4 * row * in_row, W, K, relu, v + i * row_tiles * K);
        }
        for (int p = 0; p < POSITIONS; p++)
            product(v + (size_t)p * STRIDE(K), u + p * K * N, m + (size_t)p * STRIDE(N), count * row_tiles, K, N);
        for (int i = 0; i < count; i++) {
            const int image = (first + i) / row_tiles, row = (first + i) % row_tiles;
            const float *skip = residual + image * residual_image + (size_t)4 * row * residual_row + residual_row + N;
            row_output(m + i * row_tiles * N, W, N, bias, mode, mode == STORE_RESIDUAL ? skip : 0, residual_row,
                       out + image * out_image + (size_t)4 * row * out_row, out_row);
        }
    }
}

/* Adds to du ([36][K][N]) and db; `ut` is [36][N][K]; dx is written as `mode` says. */
INLINE void convolution_backward(int images, int W, int K, int N, const float *in, int relu, const float *ut, const float *dy, float *du,
                                 float *db, int mode, float *dx, float *scratch) {
    const int row_tiles = W / 4, rows = images * row_tiles, chunk_rows = CHUNK / row_tiles;
    const int in_row = (W + 2) * K;
    const size_t in_image = (size_t)(W + 2) * in_row;
    float *v = scratch, *m = v + POSITIONS * STRIDE(K), *carry = m + POSITIONS * STRIDE(N);
    for (int first = 0; first < rows; first += chunk_rows) {
        const int count = rows - first < chunk_rows ? rows - first : chunk_rows;
        for (int i = 0; i < count; i++) {
            const int image = (first + i) / row_tiles, row = (first + i) % row_tiles;
            row_input(in + image * in_image + (size_t)4 * row * in_row, W, K, relu, v + i * row_tiles * K);
            row_output_transposed(dy + (size_t)(first + i) * 4 * W * N, W, N, m + i * row_tiles * N);
        }
        for (int p = 0; p < POSITIONS; p++) {
            float *vp = v + (size_t)p * STRIDE(K);
            const float *mp = m + (size_t)p * STRIDE(N);
            outer(vp, mp, du + p * K * N, count * row_tiles, K, N);
            product(mp, ut + p * K * N, vp, count * row_tiles, N, K);
        }
        for (int c = 0; c < N; c += VL) { /* position (1, 1) holds the sum of each tile of dY */
            vec sum = v_load(db + c);
            for (int t = 0; t < count * row_tiles; t++) sum = v_add(sum, v_load(m + (size_t)7 * STRIDE(N) + t * N + c));
            v_store(db + c, sum);
        }
        for (int i = 0; i < count; i++) {
            const int image = (first + i) / row_tiles, row = (first + i) % row_tiles;
            row_input_transposed(v + i * row_tiles * K, W, K, row, in + image * in_image + (size_t)4 * row * in_row, mode, carry,
                                 dx + (size_t)image * W * W * K);
        }
    }
}

/* ---- weights ---- */

INLINE void transform_weight(const vec g[3], vec h[6]) { /* h = G g */
    const vec sixth = v_set(1.0f / 6), twelfth = v_set(1.0f / 12), quarter = v_set(0.25f);
    vec even = v_mul(sixth, v_add(g[0], g[2])), odd = v_mul(sixth, g[1]);
    vec far = v_mul(sixth, v_fma(quarter, g[0], g[2])), odd_far = v_mul(twelfth, g[1]);
    h[0] = v_mul(quarter, g[0]);
    h[1] = v_sub(v_zero(), v_add(even, odd));
    h[2] = v_sub(odd, even);
    h[3] = v_add(far, odd_far);
    h[4] = v_sub(far, odd_far);
    h[5] = g[2];
}

INLINE void transform_weight_transposed(const vec h[6], vec g[3]) { /* g = G' h */
    const vec sixth = v_set(1.0f / 6), twelfth = v_set(1.0f / 12), quarter = v_set(0.25f);
    vec near = v_add(h[1], h[2]), far = v_add(h[3], h[4]);
    vec middle = v_mul(sixth, v_sub(far, near));
    g[0] = v_mul(sixth, v_fma(quarter, far, v_sub(v_zero(), near)));
    g[0] = v_fma(quarter, h[0], g[0]);
    g[1] = v_fma(twelfth, v_sub(h[3], h[4]), v_mul(sixth, v_sub(h[2], h[1])));
    g[2] = v_add(middle, h[5]);
}

/* w is torch's [N][K][3][3]. As [9][K][N] (`taps`, scratch) every step is the same for all pairs of channels, which are the lanes;
 * with `transposed` the pairs are in the order [N][K] throughout. u becomes [36][pairs]. */
static void transform_weights(const float *w, int K, int N, int transposed, float *taps, float *u) {
    const int pairs = K * N;
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++)
            for (int i = 0; i < 9; i++) taps[i * pairs + (transposed ? n * K + k : k * N + n)] = w[(n * K + k) * 9 + i];
    for (int at = 0; at < pairs; at += VL) {
        vec half[6][3];
        UNROLL for (int x = 0; x < 3; x++) {
            vec g[3], h[6];
            UNROLL for (int y = 0; y < 3; y++) g[y] = v_load(taps + (y * 3 + x) * pairs + at);
            transform_weight(g, h);
            UNROLL for (int i = 0; i < 6; i++) half[i][x] = h[i];
        }
        UNROLL for (int i = 0; i < 6; i++) {
            vec h[6];
            transform_weight(half[i], h);
            UNROLL for (int j = 0; j < 6; j++) v_store(u + (i * 6 + j) * pairs + at, h[j]);
        }
    }
}

/* dw (torch's layout) = G' du G */
static void transform_weight_gradient(const float *du, int K, int N, float *taps, float *dw) {
    const int pairs = K * N;
    for (int at = 0; at < pairs; at += VL) {
        vec half[3][6];
        UNROLL for (int j = 0; j < 6; j++) {
            vec h[6], g[3];
            UNROLL for (int i = 0; i < 6; i++) h[i] = v_load(du + (i * 6 + j) * pairs + at);
            transform_weight_transposed(h, g);
            UNROLL for (int y = 0; y < 3; y++) half[y][j] = g[y];
        }
        UNROLL for (int y = 0; y < 3; y++) {
            vec g[3];
            transform_weight_transposed(half[y], g);
            UNROLL for (int x = 0; x < 3; x++) v_store(taps + (y * 3 + x) * pairs + at, g[x]);
        }
    }
    for (int n = 0; n < N; n++)
        for (int k = 0; k < K; k++)
            for (int i = 0; i < 9; i++) dw[(n * K + k) * 9 + i] = taps[i * pairs + k * N + n];
}

#endif
