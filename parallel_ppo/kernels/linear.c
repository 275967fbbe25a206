/* One linear layer of any size (multiples of 64), with or without a ReLU behind it: curiosity's predictors are made of them. Weights are torch's,
 * [outputs][inputs]. `scratch` has linear_scratch_floats.
 */
#include "linear.h"

size_t linear_scratch_floats(int inputs, int outputs, int samples) {
    const size_t transposed = (size_t)inputs * padded(samples);
    return (transposed > TERMS * PANEL ? transposed : TERMS * PANEL) + 2 * (size_t)outputs * padded(samples);
}

/* x [samples][inputs] -> out [samples][outputs] */
void linear_layer_forward(int inputs, int outputs, const float *x, int samples, const float *w, const float *bias, int relu, float *scratch,
                          float *out) {
    const int lanes = padded(samples);
    float *const z = scratch, *const x_transposed = scratch + (size_t)outputs * lanes;
    if (lanes > samples) memset(x_transposed, 0, (size_t)inputs * lanes * sizeof(float));
    transpose(x, samples, inputs, inputs, x_transposed, lanes);
    lanes_matrix(outputs, lanes, 0, inputs, w, inputs, 1, x_transposed, lanes, z, lanes);
    for (int n = 0; n < outputs; n++)
        for (int l = 0; l < lanes; l += VL) {
            const vec sum = v_add(v_load(z + (size_t)n * lanes + l), v_set(bias[n]));
            v_store(z + (size_t)n * lanes + l, relu ? v_relu(sum) : sum);
        }
    transpose(z, outputs, samples, lanes, out, outputs);
}

/* Of the same x and out: dout -> dw, db, dx */
void linear_layer_backward(int inputs, int outputs, const float *x, int samples, const float *w, const float *out, const float *dout, int relu,
                           float *scratch, float *dw, float *db, float *dx) {
    const int lanes = padded(samples);
    float panel[PANEL * PANEL] __attribute__((aligned(64)));
    float *const g_transposed = scratch, *const g = g_transposed + (size_t)outputs * lanes, *const rows = g + (size_t)outputs * lanes;
    if (relu) through_relu((size_t)samples * outputs, out, dout, g);
    else memcpy(g, dout, (size_t)samples * outputs * sizeof(float));
    memset(db, 0, outputs * sizeof(float));
    add_rows(samples, outputs, g, db);
    if (lanes > samples) memset(g_transposed, 0, (size_t)outputs * lanes * sizeof(float));
    transpose(g, samples, outputs, outputs, g_transposed, lanes);
    for (int k = 0; k < inputs; k += PANEL)
        for (int b = 0; b < samples; b += TERMS) { /* rows far apart would share one cache set: copy them together */
            const int terms = samples - b < TERMS ? samples - b : TERMS;
            for (int t = 0; t < terms; t++) memcpy(rows + t * PANEL, x + (size_t)(b + t) * inputs + k, PANEL * sizeof(float));
            lanes_matrix(outputs, PANEL, b > 0, terms, g_transposed + b, lanes, 1, rows, PANEL, dw + k, inputs);
        }
    for (int k = 0; k < inputs; k += PANEL)
        for (int n = 0; n < outputs; n += PANEL) {
            for (int t = 0; t < PANEL; t++) memcpy(panel + t * PANEL, w + (size_t)(n + t) * inputs + k, PANEL * sizeof(float));
            lanes_matrix(PANEL, lanes, n > 0, PANEL, panel, 1, PANEL, g_transposed + (size_t)n * lanes, lanes, rows + (size_t)k * lanes, lanes);
        }
    transpose(rows, inputs, samples, lanes, dx, inputs);
}
