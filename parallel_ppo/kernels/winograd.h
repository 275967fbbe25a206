/* 3x3 convolution with padding 1, by Winograd's F(4x4, 3x3): forward, and backward by the exact transpose.
 *
 * With the interpolation points 0, 1, -1, 2, -2, infinity, a 4x4 tile of outputs is  Y = A' [ (G w G') . (B' x B) ] A,  where x is the
 * 6x6 tile of inputs around it and "." multiplies each of the 36 positions, summed over input channels: 36 products for 16 outputs where the
 * plain sum takes 144. The transpose of each step gives the gradients, and M = A dY A' serves both:
 *     dU = sum over tiles of (B' x B) M,    dw = G' dU G,    dx = B (U' M) B'  (tiles overlap by two and are added).
 * Padding an activation once with a border of zeros means no tile needs a special case.
 *
 * Images are square, W pixels a side: a multiple of four, of which the first `valid` are the image. The others are never written and stay
 * zero, in activations and in gradients, so that the last tiles of an image need no special case either.
 *
 * Layouts: an activation is [W+2][W+2][C]; a gradient is [W][W][C]; transformed weights are [36][K][N].
 */
#ifndef PARALLEL_PPO_WINOGRAD_H
#define PARALLEL_PPO_WINOGRAD_H

#include "winograd_strips.h"

/* ---- the products ---- */

/* c[rows][N] = a[rows][K] b[K][N], the N of one block of `columns` vectors */
INLINE void product_block(const float *a, const float *b, float *c, int rows, int columns, int K, int N) {
    vec sum[16][2];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int n = 0; n < columns; n++) sum[r][n] = v_zero();
    ROLLED for (int k = 0; k < K; k++) {
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

INLINE void product_columns(const float *a, const float *b, float *c, int tiles, int columns, int K, int N) {
    int t = 0;
    for (; t + 16 <= tiles; t += 16)
        if (VL == 8) {
            product_block(a + t * K, b, c + t * N, 6, columns, K, N);
            product_block(a + (t + 6) * K, b, c + (t + 6) * N, 5, columns, K, N);
            product_block(a + (t + 11) * K, b, c + (t + 11) * N, 5, columns, K, N);
        } else if (columns == 1) {
            product_block(a + t * K, b, c + t * N, 16, columns, K, N);
        } else {
            product_block(a + t * K, b, c + t * N, 8, columns, K, N);
            product_block(a + (t + 8) * K, b, c + (t + 8) * N, 8, columns, K, N);
        }
    for (; t < tiles; t += 4) product_block(a + t * K, b, c + t * N, 4, columns, K, N); /* past the last tile: read by nobody */
}

INLINE void product_inline(const float *a, const float *b, float *c, int tiles, int K, int N) {
    int n = 0;
    for (; n + 2 * VL <= N; n += 2 * VL) product_columns(a, b + n, c + n, tiles, 2, K, N);
    if (n < N) product_columns(a, b + n, c + n, tiles, 1, K, N);
}

/* du[rows][N] += sum over tiles of a[tile][K] b[tile][N], the N of one block of `columns` vectors */
INLINE void outer_block(const float *a, const float *b, float *du, int tiles, int rows, int columns, int K, int N) {
    vec sum[16][2];
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int j = 0; j < columns; j++) sum[r][j] = v_load(du + r * N + j * VL);
    ROLLED for (int t = 0; t < tiles; t++) {
        vec y[2];
        UNROLL for (int j = 0; j < columns; j++) y[j] = v_load(b + t * N + j * VL);
        UNROLL for (int r = 0; r < rows; r++) {
            vec x = v_set(a[t * K + r]);
            UNROLL for (int j = 0; j < columns; j++) sum[r][j] = v_fma(x, y[j], sum[r][j]);
        }
    }
    UNROLL for (int r = 0; r < rows; r++)
        UNROLL for (int j = 0; j < columns; j++) v_store(du + r * N + j * VL, sum[r][j]);
}

INLINE void outer_columns(const float *a, const float *b, float *du, int tiles, int columns, int K, int N) {
    for (int k = 0; k < K; k += 16)
        if (VL == 8) {
            outer_block(a + k, b, du + k * N, tiles, 6, columns, K, N);
            outer_block(a + k + 6, b, du + (k + 6) * N, tiles, 5, columns, K, N);
            outer_block(a + k + 11, b, du + (k + 11) * N, tiles, 5, columns, K, N);
        } else if (columns == 1) {
            outer_block(a + k, b, du + k * N, tiles, 16, columns, K, N);
        } else {
            outer_block(a + k, b, du + k * N, tiles, 8, columns, K, N);
            outer_block(a + k + 8, b, du + (k + 8) * N, tiles, 8, columns, K, N);
        }
}

INLINE void outer_inline(const float *a, const float *b, float *du, int tiles, int K, int N) {
    int n = 0;
    for (; n + 2 * VL <= N; n += 2 * VL) outer_columns(a, b + n, du + n, tiles, 2, K, N);
    if (n < N) outer_columns(a, b + n, du + n, tiles, 1, K, N);
}

/* With 16 registers a product takes all of them: inside a layer, the constants of its transforms would push out sums. */
#define PRODUCTS_OF(name, K, N)                                                                                                           \
    static __attribute__((noinline)) void product_##name(const float *a, const float *b, float *c, int tiles) {                           \
        product_inline(a, b, c, tiles, K, N);                                                                                             \
    }                                                                                                                                     \
    static __attribute__((noinline)) void outer_##name(const float *a, const float *b, float *du, int tiles) {                            \
        outer_inline(a, b, du, tiles, K, N);                                                                                              \
    }
#if VL == 8
PRODUCTS_OF(16_16, 16, 16)
PRODUCTS_OF(16_32, 16, 32)
PRODUCTS_OF(32_16, 32, 16)
PRODUCTS_OF(32_32, 32, 32)
#define CALL_OR_INLINE(what, a, b, c, tiles, K, N)                                                                                        \
    if (K == 16 && N == 16) what##_16_16(a, b, c, tiles);                                                                                 \
    else if (K == 16 && N == 32) what##_16_32(a, b, c, tiles);                                                                            \
    else if (K == 32 && N == 16) what##_32_16(a, b, c, tiles);                                                                            \
    else if (K == 32 && N == 32) what##_32_32(a, b, c, tiles);                                                                            \
    else what##_inline(a, b, c, tiles, K, N)
#else
#define CALL_OR_INLINE(what, a, b, c, tiles, K, N) what##_inline(a, b, c, tiles, K, N)
#endif

INLINE void product(const float *a, const float *b, float *c, int tiles, int K, int N) { CALL_OR_INLINE(product, a, b, c, tiles, K, N); }
INLINE void outer(const float *a, const float *b, float *du, int tiles, int K, int N) { CALL_OR_INLINE(outer, a, b, du, tiles, K, N); }

/* ---- whole layers over `images` images ---- */

/* Floats that a layer needs, or its weights while they are transformed. */
static size_t convolution_scratch(int W, int K, int N) {
    const size_t wider = K > N ? K : N, strips = CHUNK / (W / 4), taps = (size_t)9 * K * N;
    const size_t layer = PAIR_SIZE(K) + PAIR_SIZE(N) + strips * COLUMNS_SIZE(W, wider) + 2 * (W + 2) * wider;
    return layer > taps ? layer : taps;
}

/* Fetches one of `parts` shares of a line of memory into the second-level cache while the products leave the memory idle. */
INLINE void fetch_share(const float *p, int floats, int part, int parts) {
    for (int i = part * 16; i < floats; i += parts * 16) __builtin_prefetch(p + i, 0, 2);
}

/* `out` points past its border; out_row and out_image are its strides. `skip` is [images][W][W][N]. */
INLINE void convolution(int images, int W, int valid, int K, int N, const float *in, const float *u, const float *bias, int mode, float *skip,
                        float *out, int out_row, size_t out_image, float *scratch) {
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
            strip_rows(half + s * HALF_SIZE(W, N), W, valid, N, row, mode, skip + (size_t)(first + s) * 4 * W * N,
                       out + image * out_image + (size_t)4 * row * out_row, out_row);
        }
    }
}

/* Adds to du ([36][K][N]) and db; `ut` is [36][N][K]; dx is written as `mode` says. */
INLINE void convolution_backward(int images, int W, int valid, int K, int N, const float *in, const float *ut, const float *dy, float *du,
                                 float *db, int mode, float *dx, float *scratch) {
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
            strip_columns_transposed(columns + s * COLUMNS_SIZE(W, K), W, valid, K, row, in + image * in_image + (size_t)4 * row * in_row, mode,
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
