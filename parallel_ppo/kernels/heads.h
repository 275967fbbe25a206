/* What acting shares: a row of a linear layer, and the choice of a categorical action. */
#ifndef PARALLEL_PPO_HEADS_H
#define PARALLEL_PPO_HEADS_H

#include "vector.h"
#include <math.h>

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

/* One component's action by inverse CDF; z are its logits. Adds to its log-probability. */
static float choose(const float *z, int size, float draw, float *log_prob) {
    float largest = z[0], total = 0;
    int chosen = 0;
    for (int k = 1; k < size; k++) largest = z[k] > largest ? z[k] : largest;
    for (int k = 0; k < size; k++) total += expf(z[k] - largest);
    for (float below = expf(z[0] - largest); chosen + 1 < size && below <= draw * total; below += expf(z[chosen] - largest)) chosen++;
    *log_prob += z[chosen] - largest - logf(total);
    return chosen;
}

#endif
