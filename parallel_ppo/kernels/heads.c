/* The action and the value head of a few samples, with the choice of a categorical action: on a slice's few rows, a call costs more than its
 * arithmetic. As `heads.act` behind two linear layers.
 */
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

/* features [samples][num_features], draws and action [samples][components]; logits is scratch for one sample. */
void heads_act(const float *features, int samples, int num_features, const float *action_weight, const float *action_bias,
               const float *value_weight, const float *value_bias, int components, const int *sizes, const float *draws, float *logits,
               float *action, float *log_prob, float *value) {
    for (int b = 0; b < samples; b++) {
        const float *x = features + (size_t)b * num_features;
        int start = 0;
        value[b] = dot(x, value_weight, num_features) + value_bias[0];
        log_prob[b] = 0;
        for (int c = 0; c < components; start += sizes[c], c++) {
            for (int k = start; k < start + sizes[c]; k++) logits[k] = dot(x, action_weight + (size_t)k * num_features, num_features) + action_bias[k];
            action[b * components + c] = choose(logits + start, sizes[c], draws[b * components + c], &log_prob[b]);
        }
    }
}
