/* The action and the value head of a few samples, with the choice of a categorical action: on a slice's few rows, a call costs more than its
 * arithmetic. As `heads.act` behind two linear layers.
 */
#include "api.h"
#include "heads.h"

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
