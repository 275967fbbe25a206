/* The action and the value head behind a trunk for images, and the choice of an action: on a slice's few rows, a call costs more than its
 * arithmetic. */
#include "api.h"
#include "heads.h"

void heads_forward(const heads *h, const float *features, int samples, float *action, float *values) {
    head_forward(features, samples, h->features, h->outputs, h->action_weight, h->action_bias, action);
    head_forward(features, samples, h->features, h->values, h->value_weight, h->value_bias, values);
}

void heads_backward(const heads *h, const float *features, int samples, const float *by_action, const float *by_values, pointers gradients,
                    float *by_features) {
    const int units = h->features;
    head_gradients(features, samples, units, h->outputs, by_action, gradients[0], gradients[1]);
    head_gradients(features, samples, units, h->values, by_values, gradients[2], gradients[3]);
    matrix_product(samples, units, h->outputs, by_action, h->outputs, 1, h->action_weight, units, NULL, 0, by_features, units);
    matrix_product(samples, units, h->values, by_values, h->values, 1, h->value_weight, units, by_features, units, by_features, units);
}

void heads_act(const heads *h, const float *features, int samples, int components, const int *sizes, const float *draws, float *logits,
               float *action, float *log_prob, float *values) {
    heads_forward(h, features, samples, logits, values);
    for (int b = 0; b < samples; b++, logits += h->outputs) {
        log_prob[b] = 0;
        for (int c = 0, start = 0; c < components; start += sizes[c], c++)
            action[b * components + c] = choose(logits + start, sizes[c], draws[b * components + c], &log_prob[b]);
    }
}
