/* The first convolution (C bytes per pixel -> N channels, a multiple of 16) with its max-pool, row by row; plain sums, because with three input
 * channels there is little to transform. The scale 1/255 sits in the packed weights; pixels stay whole numbers. Images have S pixels a side.
 */
#ifndef PARALLEL_PPO_STEM_H
#define PARALLEL_PPO_STEM_H

#include "pool.h"
#include "vector.h"

#define STEM_PANEL 16 /* channels that are summed at once */

INLINE int in_fours(int pixels) { return (pixels + 3) / 4 * 4; }
INLINE int stem_row_floats(int S, int N) { return (in_fours(S) + 1) * N; } /* of a convolved row with its pool border */
INLINE size_t stem_image_floats(int S, int C) { return (size_t)(S + 2) * (S + 2) * C + 4 * C; } /* rows are read in whole fours */

/* [S][S][C] bytes into the middle of [S+2][S+2][C] floats whose border is zero */
INLINE void load_image(const uint8_t *pixels, int S, int C, float *image) {
    for (int y = 0; y < S; y++) {
        const uint8_t *from = pixels + (size_t)y * S * C;
        float *to = image + ((size_t)(y + 1) * (S + 2) + 1) * C;
        for (int i = 0; i < S * C; i++) to[i] = from[i];
    }
}

/* `pixels` pixels of one convolved row, one panel of its channels */
INLINE void stem_pixels(int pixels, const float *image, int S, int C, int N, const float *w, const float *bias, float *out) {
    enum { COLUMNS = STEM_PANEL / VL };
    vec sum[16][COLUMNS];
    UNROLL for (int r = 0; r < pixels; r++)
        UNROLL for (int n = 0; n < COLUMNS; n++) sum[r][n] = v_load(bias + n * VL);
    for (int y = 0; y < 3; y++) {
        const float *in = image + (size_t)y * (S + 2) * C, *wy = w + y * 3 * C * N;
        ROLLED for (int j = 0; j < 3 * C; j++) { /* unrolled, pixels that neighbours share would push the sums out of the registers */
            vec tap[COLUMNS];
            UNROLL for (int n = 0; n < COLUMNS; n++) tap[n] = v_load(wy + j * N + n * VL);
            UNROLL for (int r = 0; r < pixels; r++) {
                vec a = v_set(in[r * C + j]);
                UNROLL for (int n = 0; n < COLUMNS; n++) sum[r][n] = v_fma(a, tap[n], sum[r][n]);
            }
        }
    }
    UNROLL for (int r = 0; r < pixels; r++)
        UNROLL for (int n = 0; n < COLUMNS; n++) v_store(out + r * N + n * VL, sum[r][n]);
}

/* One convolved row; `image` is the first of its three padded rows; w is [3][3C][N]. An odd row ends with a pixel that wins no pool. */
INLINE void stem_row(const float *image, int S, int C, int N, const float *w, const float *bias, float *out) {
    enum { BLOCK = VL == 16 ? 16 : 6 };
    const int pixels = in_fours(S);
    for (int n = 0; n < N; n += STEM_PANEL) {
        int x = 0;
        for (; pixels - x >= BLOCK && pixels - x != 8; x += BLOCK) stem_pixels(BLOCK, image + x * C, S, C, N, w + n, bias + n, out + x * N + n);
        for (; x < pixels; x += 4) stem_pixels(4, image + x * C, S, C, N, w + n, bias + n, out + x * N + n);
    }
    if (S % 2) fill_unpooled(out + S * N, N);
}

/* `rows` is scratch of four rows (stem_row_floats) whose first pixel is -infinity, the fourth row wholly so; `positive` points past its border;
 * `row` numbers are between pooled rows of `out` and `index`. */
INLINE void stem_forward(const float *image, int S, int C, int N, const float *w, const float *bias, float *rows, float *out, int row,
                         float *positive, int positive_row, uint8_t *index) {
    const int convolved = stem_row_floats(S, N);
    float *const outside = rows + 3 * convolved;
    const float *above = outside;
    for (int r = 0; r < (S + 1) / 2; r++) {
        /* Three rows in turn: the last row of this window is the first of the next. */
        float *middle = rows + (2 * r % 3) * convolved, *below = 2 * r + 1 < S ? rows + ((2 * r + 1) % 3) * convolved : outside;
        stem_row(image + (size_t)(2 * r) * (S + 2) * C, S, C, N, w, bias, middle + N);
        if (below != outside) stem_row(image + (size_t)(2 * r + 1) * (S + 2) * C, S, C, N, w, bias, below + N);
        pool_row(above, middle, below, (S + 1) / 2, N, out + (size_t)r * row, positive + (size_t)r * positive_row, index + (size_t)r * row);
        above = below;
    }
}

/* dw[3][3C][N] += sum over one row's pixels; J of the 3C taps of each of the three rows at a time stay in registers. */
INLINE void stem_row_backward(const float *image, int S, int C, int N, int J, const float *dy, float *dw, float *db) {
    for (int c = 0; c < N; c += VL) {
        for (int j = 0; j < 3 * C; j += J) {
            const float *in = image + j;
            vec sum[3][9], bias = v_load(db + c);
            UNROLL for (int y = 0; y < 3; y++)
                UNROLL for (int i = 0; i < J; i++) sum[y][i] = v_load(dw + (y * 3 * C + j + i) * N + c);
            for (int x = 0; x < S; x++) {
                vec g = v_load(dy + x * N + c);
                UNROLL for (int y = 0; y < 3; y++)
                    UNROLL for (int i = 0; i < J; i++)
                        sum[y][i] = v_fma(v_set(in[(y * (S + 2) + x) * C + i]), g, sum[y][i]);
                if (j == 0) bias = v_add(bias, g);
            }
            UNROLL for (int y = 0; y < 3; y++)
                UNROLL for (int i = 0; i < J; i++) v_store(dw + (y * 3 * C + j + i) * N + c, sum[y][i]);
            v_store(db + c, bias);
        }
    }
}

/* `rows` is scratch of two unpooled rows. */
INLINE void stem_backward(const float *image, int S, int C, int N, const float *g, int row, const uint8_t *index, float *rows, float *dw,
                          float *db) {
    const int P = (S + 1) / 2;
    float *even = rows, *odd = rows + 2 * P * N;
    for (int r = 0; r < P; r++) {
        const float *in = image + (size_t)2 * r * (S + 2) * C;
        pool_row_backward(g + (size_t)r * row, index + (size_t)r * row, P, N, row, r + 1 == P, even, odd);
        for (int i = 0; i < 2 && 2 * r + i < S; i++) {
            if (VL == 16 && C % 3 == 0)
                stem_row_backward(in + (size_t)i * (S + 2) * C, S, C, N, 9, i ? odd : even, dw, db);
            else
                stem_row_backward(in + (size_t)i * (S + 2) * C, S, C, N, 3, i ? odd : even, dw, db);
        }
    }
}

/* w is torch's [N][C][3][3] */
static void pack_stem(const float *w, int C, int N, float *packed) {
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int t = 0; t < 9; t++) packed[((t / 3 * 3 + t % 3) * C + c) * N + n] = w[(n * C + c) * 9 + t] / 255.0f;
}

static void unpack_stem_gradient(const float *packed, int C, int N, float *dw) {
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int t = 0; t < 9; t++) dw[(n * C + c) * 9 + t] = packed[((t / 3 * 3 + t % 3) * C + c) * N + n] / 255.0f;
}

#endif
