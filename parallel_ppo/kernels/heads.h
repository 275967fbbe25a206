/* Linear heads on features, and the choice of a categorical action. */
#ifndef PARALLEL_PPO_HEADS_H
#define PARALLEL_PPO_HEADS_H

#include "functions.h"
#include "linear.h"

/* Term i goes to sum i % 16, in either instruction set; the sixteen are added in turn. `count` is a multiple of 16. */
INLINE float dot(const float *a, const float *b, int count) {
    vec sum[16 / VL];
    float parts[16], total = 0;
    UNROLL for (int v = 0; v < 16 / VL; v++) sum[v] = v_zero();
    for (int i = 0; i < count; i += 16)
        UNROLL for (int v = 0; v < 16 / VL; v++) sum[v] = v_fma(v_load(a + i + v * VL), v_load(b + i + v * VL), sum[v]);
    UNROLL for (int v = 0; v < 16 / VL; v++) v_store(parts + v * VL, sum[v]);
    for (int i = 0; i < 16; i++) total += parts[i];
    return total;
}

/* features [B][units] -> out [B][outputs] */
static void head_forward(const float *features, int samples, int units, int outputs, const float *weight, const float *bias, float *out) {
    for (int b = 0; b < samples; b++)
        for (int k = 0; k < outputs; k++)
            out[(size_t)b * outputs + k] = dot(features + (size_t)b * units, weight + (size_t)k * units, units) + bias[k];
}

/* g [B][outputs] -> the derivatives of the head's weight and bias */
static void head_gradients(const float *features, int samples, int units, int outputs, const float *g, float *by_weight, float *by_bias) {
    matrix_product(outputs, units, samples, g, 1, outputs, features, units, NULL, 0, by_weight, units);
    memset(by_bias, 0, outputs * sizeof(float));
    for (int b = 0; b < samples; b++)
        for (int k = 0; k < outputs; k++) by_bias[k] += g[(size_t)b * outputs + k];
}

/* One component's action by inverse CDF; z are its logits, of which their largest is subtracted. Adds to its log-probability. */
static float choose(float *z, int size, float draw, float *log_prob) {
    float largest = z[0], total = 0, below, one, weight[size];
    int chosen = 0;
    for (int k = 1; k < size; k++) largest = z[k] > largest ? z[k] : largest;
    for (int k = 0; k < size; k++) z[k] -= largest;
    each_exp(z, size, weight);
    for (int k = 0; k < size; k++) total += weight[k];
    for (below = weight[0]; chosen + 1 < size && below <= draw * total; below += weight[chosen]) chosen++;
    each_log(&total, 1, &one);
    *log_prob += z[chosen] - one;
    return chosen;
}

#endif
