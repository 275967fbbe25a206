/* Convolutions without padding, as plain sums: what there is to multiply stays in registers, what is next to each other in memory (a row of a
 * window, all channels of a pixel) is one run of terms. Images and gradients are [row][pixel][channel]; a lane of a vector is an output channel.
 */
#ifndef PARALLEL_PPO_DIRECT_H
#define PARALLEL_PPO_DIRECT_H

#include "vector.h"

#define PANEL_LANES (2 * VL) /* output channels that a tile of the forward pass makes at once */

/* sum[r P + p][v] += over `terms` of x[r x_row + p x_step + t] w[t w_term + v] */
INLINE void tile_add(int R, int P, int V, int terms, const float *x, size_t x_row, int x_step, const float *w, int w_term, vec sum[][4]) {
    for (int t = 0; t < terms; t++) {
        vec tap[4];
        UNROLL for (int v = 0; v < V; v++) tap[v] = v_load(w + (size_t)t * w_term + v * VL);
        UNROLL for (int r = 0; r < R; r++)
            UNROLL for (int p = 0; p < P; p++) {
                const vec a = v_set(x[r * x_row + p * x_step + t]);
                UNROLL for (int v = 0; v < V; v++) sum[r * P + p][v] = v_fma(a, tap[v], sum[r * P + p][v]);
            }
    }
}

/* R rows of P pixels of a convolution with its ReLU: windows of `size` rows with `terms` numbers each; w is [size][terms][PANEL_LANES] */
INLINE void tile_forward(int R, int P, int size, int terms, const float *in, int in_row, int stride_row, int stride_pixel, const float *w,
                         const float *bias, float *out, int out_row, int N) {
    vec sum[28][4];
    UNROLL for (int i = 0; i < R * P; i++)
        UNROLL for (int v = 0; v < 2; v++) sum[i][v] = v_load(bias + v * VL);
    for (int y = 0; y < size; y++)
        tile_add(R, P, 2, terms, in + (size_t)y * in_row, stride_row, stride_pixel, w + (size_t)y * terms * PANEL_LANES, PANEL_LANES, sum);
    UNROLL for (int r = 0; r < R; r++)
        UNROLL for (int p = 0; p < P; p++)
            UNROLL for (int v = 0; v < 2; v++) v_store(out + (size_t)r * out_row + p * N + v * VL, v_relu(sum[r * P + p][v]));
}

/* dx[p dx_step + v] += over the N channels of g of g[p N + n] w[n w_term + v], for P pixels in a row */
INLINE void tile_data(int P, int V, int N, const float *g, const float *w, int w_term, float *dx, int dx_step) {
    vec sum[6][4];
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int v = 0; v < V; v++) sum[p][v] = v_load(dx + p * dx_step + v * VL);
    tile_add(1, P, V, N, g, 0, N, w, w_term, sum);
    UNROLL for (int p = 0; p < P; p++)
        UNROLL for (int v = 0; v < V; v++) v_store(dx + p * dx_step + v * VL, sum[p][v]);
}

/* dw[j N + v] += over rows and pixels of x[row x_row + pixel x_step + j] g[row g_row + pixel N + v], for J terms of a window's row, over
 * images that are x_image and g_image apart */
INLINE void tile_weights(int J, int V, int images, int rows, int pixels, const float *x, size_t x_image, size_t x_row, int x_step,
                         const float *g, size_t g_image, size_t g_row, int N, float *dw) {
    vec sum[12][4];
    UNROLL for (int j = 0; j < J; j++)
        UNROLL for (int v = 0; v < V; v++) sum[j][v] = v_load(dw + j * N + v * VL);
    for (int i = 0; i < images; i++)
        for (int r = 0; r < rows; r++) {
            const float *at = x + i * x_image + r * x_row, *slope = g + i * g_image + r * g_row;
            for (int p = 0; p < pixels; p++) {
                vec y[4];
                UNROLL for (int v = 0; v < V; v++) y[v] = v_load(slope + p * N + v * VL);
                UNROLL for (int j = 0; j < J; j++) {
                    const vec a = v_set(at[p * x_step + j]);
                    UNROLL for (int v = 0; v < V; v++) sum[j][v] = v_fma(a, y[v], sum[j][v]);
                }
            }
        }
    UNROLL for (int j = 0; j < J; j++)
        UNROLL for (int v = 0; v < V; v++) v_store(dw + j * N + v * VL, sum[j][v]);
}

/* All `terms` of a window's row, a multiple of 4, and all N channels: as many terms at once as their sums fit into the registers. */
INLINE void row_weights(int terms, int V, int images, int rows, int pixels, const float *x, size_t x_image, size_t x_row, int x_step,
                        const float *g, size_t g_image, size_t g_row, int N, float *dw) {
    for (int j = 0, J; j < terms; j += J) {
        J = VL == 8 && (terms - j) % 6 == 0 ? 6 : 4;
        for (int n = 0; n < N; n += V * VL) {
            float *to = dw + (size_t)j * N + n;
            if (J == 6) tile_weights(6, V, images, rows, pixels, x + j, x_image, x_row, x_step, g + n, g_image, g_row, N, to);
            else tile_weights(4, V, images, rows, pixels, x + j, x_image, x_row, x_step, g + n, g_image, g_row, N, to);
        }
    }
}

/* torch's [N][C][size][size] -> [N / PANEL_LANES][size][size][C][PANEL_LANES], divided */
static inline void pack_forward(const float *w, int N, int C, int size, float divisor, float *packed) {
    const int taps = size * size;
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int t = 0; t < taps; t++)
                packed[(((size_t)(n / PANEL_LANES) * taps + t) * C + c) * PANEL_LANES + n % PANEL_LANES] =
                    w[((size_t)n * C + c) * taps + t] / divisor;
}

/* torch's [N][C][size][size] -> [size][size / pixels][N][pixels][C] */
static inline void pack_data(const float *w, int N, int C, int size, int pixels, float *packed) {
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int t = 0; t < size * size; t++)
                packed[(((size_t)(t / pixels) * N + n) * pixels + t % pixels) * C + c] = w[((size_t)n * C + c) * size * size + t];
}

/* [size][size][C][N] -> torch's [N][C][size][size], divided */
static void unpack_gradient(const float *packed, int N, int C, int size, float divisor, float *dw) {
    const int taps = size * size;
    for (int n = 0; n < N; n++)
        for (int c = 0; c < C; c++)
            for (int t = 0; t < taps; t++) dw[((size_t)n * C + c) * taps + t] = packed[((size_t)t * C + c) * N + n] / divisor;
}

#endif
