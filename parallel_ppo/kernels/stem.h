/* The first convolution (C bytes per pixel -> 16 channels) with its max-pool, row by row; plain sums, because with three input
 * channels there is little to transform. The scale 1/255 sits in the packed weights; pixels stay whole numbers.
 */
#ifndef PARALLEL_PPO_STEM_H
#define PARALLEL_PPO_STEM_H

#include "network.h"
#include "pool.h"
#include "vector.h"

#define STEM 16
#define STEM_ROW (IMAGE + 1) /* pixels of a convolved row with its pool border */

/* [64][64][C] bytes into the middle of [66][66][C] floats whose border is zero */
INLINE void load_image(const uint8_t *pixels, int C, float *image) {
    for (int y = 0; y < IMAGE; y++) {
        const uint8_t *from = pixels + (size_t)y * IMAGE * C;
        float *to = image + ((size_t)(y + 1) * (IMAGE + 2) + 1) * C;
        for (int i = 0; i < IMAGE * C; i++) to[i] = from[i];
    }
}

/* One convolved row; `image` is the first of its three padded rows; w is [3][3C][16]. */
INLINE void stem_row(const float *image, int C, const float *w, const float *bias, float *out) {
    enum { COLUMNS = STEM / VL, BLOCK = VL == 16 ? 16 : 4 };
    for (int x = 0; x < IMAGE; x += BLOCK) {
        vec sum[BLOCK][COLUMNS];
        UNROLL for (int r = 0; r < BLOCK; r++)
            UNROLL for (int n = 0; n < COLUMNS; n++) sum[r][n] = v_load(bias + n * VL);
        for (int y = 0; y < 3; y++) {
            const float *in = image + (size_t)y * (IMAGE + 2) * C + x * C, *wy = w + y * 3 * C * STEM;
            for (int j = 0; j < 3 * C; j++) {
                vec tap[COLUMNS];
                UNROLL for (int n = 0; n < COLUMNS; n++) tap[n] = v_load(wy + j * STEM + n * VL);
                UNROLL for (int r = 0; r < BLOCK; r++) {
                    vec a = v_set(in[r * C + j]);
                    UNROLL for (int n = 0; n < COLUMNS; n++) sum[r][n] = v_fma(a, tap[n], sum[r][n]);
                }
            }
        }
        UNROLL for (int r = 0; r < BLOCK; r++)
            UNROLL for (int n = 0; n < COLUMNS; n++) v_store(out + (x + r) * STEM + n * VL, sum[r][n]);
    }
}

/* `rows` is scratch of four rows [65][16] whose first pixel is -infinity, the fourth row wholly so; `positive` points past
 * its border. */
INLINE void stem_forward(const float *image, int C, const float *w, const float *bias, float *rows, float *out, float *positive,
                         int positive_row, uint8_t *index) {
    const float *above = rows + 3 * STEM_ROW * STEM;
    for (int r = 0; r < IMAGE / 2; r++) {
        /* Three rows in turn: the last row of this window is the first of the next. */
        float *middle = rows + (2 * r % 3) * STEM_ROW * STEM, *below = rows + ((2 * r + 1) % 3) * STEM_ROW * STEM;
        stem_row(image + (size_t)(2 * r) * (IMAGE + 2) * C, C, w, bias, middle + STEM);
        stem_row(image + (size_t)(2 * r + 1) * (IMAGE + 2) * C, C, w, bias, below + STEM);
        const size_t at = (size_t)r * IMAGE / 2 * STEM;
        pool_row(above, middle, below, IMAGE / 2, STEM, out + at, positive + (size_t)r * positive_row, index + at);
        above = below;
    }
}

/* dw[3][3C][16] += sum over one row's pixels; J of the 3C taps of each of the three rows at a time stay in registers. */
INLINE void stem_row_backward(const float *image, int C, int J, const float *dy, float *dw, float *db) {
    for (int c = 0; c < STEM; c += VL) {
        for (int j = 0; j < 3 * C; j += J) {
            const float *in = image + j;
            vec sum[3][9], bias = v_load(db + c);
            UNROLL for (int y = 0; y < 3; y++)
                UNROLL for (int i = 0; i < J; i++) sum[y][i] = v_load(dw + (y * 3 * C + j + i) * STEM + c);
            for (int x = 0; x < IMAGE; x++) {
                vec g = v_load(dy + x * STEM + c);
                UNROLL for (int y = 0; y < 3; y++)
                    UNROLL for (int i = 0; i < J; i++)
                        sum[y][i] = v_fma(v_set(in[(y * (IMAGE + 2) + x) * C + i]), g, sum[y][i]);
                if (j == 0) bias = v_add(bias, g);
            }
            UNROLL for (int y = 0; y < 3; y++)
                UNROLL for (int i = 0; i < J; i++) v_store(dw + (y * 3 * C + j + i) * STEM + c, sum[y][i]);
            v_store(db + c, bias);
        }
    }
}

INLINE void stem_backward(const float *image, int C, const float *g, const uint8_t *index, float *rows, float *dw, float *db) {
    float *even = rows, *odd = rows + IMAGE * STEM;
    for (int r = 0; r < IMAGE / 2; r++) {
        const size_t at = (size_t)r * IMAGE / 2 * STEM;
        const float *in = image + (size_t)2 * r * (IMAGE + 2) * C;
        pool_row_backward(g + at, index + at, IMAGE / 2, STEM, r + 1 == IMAGE / 2, even, odd);
        for (int i = 0; i < 2; i++) {
            if (VL == 16 && C % 3 == 0)
                stem_row_backward(in + (size_t)i * (IMAGE + 2) * C, C, 9, i ? odd : even, dw, db);
            else
                stem_row_backward(in + (size_t)i * (IMAGE + 2) * C, C, 3, i ? odd : even, dw, db);
        }
    }
}

/* w is torch's [16][C][3][3] */
static void pack_stem(const float *w, int C, float *packed) {
    for (int n = 0; n < STEM; n++)
        for (int c = 0; c < C; c++)
            for (int t = 0; t < 9; t++) packed[((t / 3 * 3 + t % 3) * C + c) * STEM + n] = w[(n * C + c) * 9 + t] / 255.0f;
}

static void unpack_stem_gradient(const float *packed, int C, float *dw) {
    for (int n = 0; n < STEM; n++)
        for (int c = 0; c < C; c++)
            for (int t = 0; t < 9; t++) dw[(n * C + c) * 9 + t] = packed[((t / 3 * 3 + t % 3) * C + c) * STEM + n] / 255.0f;
}

#endif
