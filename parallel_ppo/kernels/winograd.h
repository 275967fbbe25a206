/* 3x3 convolution with padding 1, by Winograd's F(4x4, 3x3): forward, and backward by the exact transpose.
 *
 * With the interpolation points 0, 1, -1, 2, -2, infinity, a 4x4 tile of outputs is  Y = A' [ (G w G') . (B' x B) ] A,  where x is the
 * 6x6 tile of inputs around it and "." multiplies each of the 36 positions, summed over input channels: 36 products for 16 outputs where the
 * plain sum takes 144. The transpose of each step gives the gradients, and M = A dY A' serves both:
 *     dU = sum over tiles of (B' x B) M,    dw = G' dU G,    dx = B (U' M) B'  (tiles overlap by two and are added).
 * Padding an activation once with a border of zeros means no tile needs a special case.
 *
 * Layouts: an activation is [H+2][W+2][C]; a gradient is [H][W][C]; transformed weights are [36][K][N].
 */
#ifndef PARALLEL_PPO_WINOGRAD_H
#define PARALLEL_PPO_WINOGRAD_H

#include "vector.h"

#ifndef CHUNK
#define CHUNK 16 /* tiles that go through the 36 products together; a multiple of 16 */
#endif
#define POSITIONS 36
#define STRIDE(C) (CHUNK * (C) + 16) /* between positions; not a power of two, which would put them all in one cache set */
#define MAX_WIDTH 34

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

/* `out` points at the first of the four rows, past any border; `skip` is [4][W][C]. */
INLINE void strip_rows(const float *half, int W, int C, int mode, float *skip, float *out, int out_row) {
    for (int c = 0; c < C; c += VL) {
        const float *from = half + (size_t)c * 6 * W;
        for (int x = 0; x < W; x++) {
            vec r[6], y[4];
            UNROLL for (int i = 0; i < 6; i++) r[i] = v_load(from + (i * W + x) * VL);
            transform_output(r, y);
            UNROLL for (int i = 0; i < 4; i++) {
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
INLINE void strip_columns_transposed(const float *columns, int W, int C, int row, const float *act, int mode, float *carry, float *dx) {
    const int act_row = (W + 2) * C, dx_row = W * C;
    for (int c = 0; c < C; c += VL) {
        const float *from = columns + (size_t)c * 6 * (W + 2);
        for (int x = 1; x <= W; x++) {
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
            finish_gradient(d[2], a + 2 * act_row, g + 2 * dx_row, mode);
            finish_gradient(d[3], a + 3 * act_row, g + 3 * dx_row, mode);
            if (4 * row + 4 == W) {
                finish_gradient(d[4], a + 4 * act_row, g + 4 * dx_row, mode);
            } else {
                v_store(first, d[4]);
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

#define CONVOLUTION_SCRATCH (2 * PAIR_SIZE(32) + CHUNK * 6 * 6 * 32 + 2 * MAX_WIDTH * 32) /* floats that a layer needs */

/* Fetches one of `parts` shares of a line of memory into the second-level cache while the products leave the memory idle. */
INLINE void fetch_share(const float *p, int floats, int part, int parts) {
    for (int i = part * 16; i < floats; i += parts * 16) __builtin_prefetch(p + i, 0, 2);
}

/* `out` points past its border; out_row and out_image are its strides. `skip` is [images][W][W][N]. */
INLINE void convolution(int images, int W, int K, int N, const float *in, const float *u, const float *bias, int mode, float *skip, float *out,
                        int out_row, size_t out_image, float *scratch) {
    const int row_tiles = W / 4, strips = images * row_tiles, chunk_strips = CHUNK / row_tiles;
    const int in_row = (W + 2) * K;
    const int in_place = K == N && N <= 2 * VL; /* a product's block reads all that it overwrites first */
    const size_t in_image = (size_t)(W + 2) * in_row;
    float *v = scratch, *m = in_place ? v : v + PAIR_SIZE(K), *half = m + PAIR_SIZE(N);
    for (int first = 0; first < strips; first += chunk_strips) {
        const int count = strips - first < chunk_strips ? strips - first : chunk_strips;
        for (int pair = 0; pair < PAIRS; pair++) {
            for (int s = 0; s < count; s++) {
                const int image = (first + s) / row_tiles, row = (first + s) % row_tiles;
                strip_input(in + image * in_image + (size_t)4 * row * in_row, W, K, pair, v + s * row_tiles * K);
            }
            for (int j = 0; j < 12; j++) {
                if (mode != STORE && pair < 2) {
                    for (int s = 0; s < count; s++) {
                        const int image = (first + s) / row_tiles, row = (first + s) % row_tiles;
                        fetch_share(out + image * out_image + (size_t)(4 * row + 2 * pair + j / 6) * out_row, W * N, j % 6, 6);
                    }
                }
                product(v + j * STRIDE(K), u + (PAIR_LINE[pair][j / 6] * 6 + j % 6) * K * N, m + j * STRIDE(N), count * row_tiles, K, N);
            }
            for (int s = 0; s < count; s++)
                for (int i = 0; i < 2; i++)
                    strip_output(m + s * row_tiles * N + i * 6 * STRIDE(N), W, N, PAIR_LINE[pair][i], bias, half + s * HALF_SIZE(W, N));
        }
        for (int s = 0; s < count; s++) {
            const int image = (first + s) / row_tiles, row = (first + s) % row_tiles;
            strip_rows(half + s * HALF_SIZE(W, N), W, N, mode, skip + (size_t)(first + s) * 4 * W * N,
                       out + image * out_image + (size_t)4 * row * out_row, out_row);
        }
    }
}

/* Adds to du ([36][K][N]) and db; `ut` is [36][N][K]; dx is written as `mode` says. */
INLINE void convolution_backward(int images, int W, int K, int N, const float *in, const float *ut, const float *dy, float *du, float *db,
                                 int mode, float *dx, float *scratch) {
    const int row_tiles = W / 4, strips = images * row_tiles, chunk_strips = CHUNK / row_tiles;
    const int in_row = (W + 2) * K;
    const size_t in_image = (size_t)(W + 2) * in_row;
    float *v = scratch, *m = v + PAIR_SIZE(K), *columns = m + PAIR_SIZE(N), *carry = columns + chunk_strips * COLUMNS_SIZE(W, K);
    for (int first = 0; first < strips; first += chunk_strips) {
        const int count = strips - first < chunk_strips ? strips - first : chunk_strips, tiles = count * row_tiles;
        for (int pair = 0; pair < PAIRS; pair++) {
            for (int s = 0; s < count; s++) {
                const int image = (first + s) / row_tiles, row = (first + s) % row_tiles;
                strip_input(in + image * in_image + (size_t)4 * row * in_row, W, K, pair, v + s * row_tiles * K);
                strip_gradient(dy + (size_t)(first + s) * 4 * W * N, W, N, pair, m + s * row_tiles * N);
            }
            for (int j = 0; j < 12; j++) {
                const int at = (PAIR_LINE[pair][j / 6] * 6 + j % 6) * K * N;
                if (pair < 2) {
                    for (int s = 0; s < count && first + count + s < strips; s++) {
                        const int image = (first + count + s) / row_tiles, row = (first + count + s) % row_tiles;
                        fetch_share(in + image * in_image + (size_t)(4 * row + 2 + 2 * pair + j / 6) * in_row, in_row, j % 6, 6);
                    }
                }
                outer(v + j * STRIDE(K), m + j * STRIDE(N), du + at, tiles, K, N);
                product(m + j * STRIDE(N), ut + at, v + j * STRIDE(K), tiles, N, K);
            }
            if (pair == 1) { /* position (1, 1) holds the sum of each tile of dY */
                for (int c = 0; c < N; c += VL) {
                    vec sum = v_load(db + c);
                    for (int t = 0; t < tiles; t++) sum = v_add(sum, v_load(m + STRIDE(N) + t * N + c));
                    v_store(db + c, sum);
                }
            }
            for (int s = 0; s < count; s++)
                for (int i = 0; i < 2; i++)
                    strip_input_transposed(v + s * row_tiles * K + i * 6 * STRIDE(K), W, K, PAIR_LINE[pair][i],
                                           columns + s * COLUMNS_SIZE(W, K));
        }
        for (int s = 0; s < count; s++) {
            const int image = (first + s) / row_tiles, row = (first + s) % row_tiles;
            strip_columns_transposed(columns + s * COLUMNS_SIZE(W, K), W, K, row, in + image * in_image + (size_t)4 * row * in_row, mode,
                                     carry, dx + (size_t)image * W * W * K);
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
