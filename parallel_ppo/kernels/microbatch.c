#include "ppo.h"
#include <string.h>

enum { MAX_POINTERS = 64 }; /* of parameters: 4 for each layer and 4 for the heads */

static int inputs_of(const microbatch_settings *s) { return s->network->sizes[0]; }

static int actions_of(const microbatch_settings *s) { return s->network->components ? s->network->components : s->network->outputs; }

size_t microbatch_scratch_floats(const microbatch_settings *s, int samples) {
    const size_t columns = inputs_of(s) + actions_of(s) + 2 * s->network->outputs + 6;
    return mlp_space_floats(s->network, samples) + ppo_scratch_floats(s, samples) + columns * samples + s->network->outputs;
}

/* One sample's observation, as `Preparation.vector`; a NaN stays. */
static void prepare(const microbatch_settings *s, const float *in, float *out) {
    const int inputs = inputs_of(s);
    const float most = (float)s->observation_clip, least = (float)-s->observation_clip;
    if (!s->normalizes) {
        memcpy(out, in, inputs * sizeof(float));
        return;
    }
    for (int i = 0; i < inputs; i++) {
        const float x = (in[i] - s->observation_mean[i]) * s->observation_scale[i];
        out[i] = x < least ? least : x > most ? most : x;
    }
}

void microbatch_gradient(const microbatch_settings *s, const rollout_columns *rollout, const int64_t *rows, int samples, const double *scalars, float *gradient,
                   double *statistics) {
    const int inputs = inputs_of(s), actions = actions_of(s), outputs = s->network->outputs;
    float *gradients[MAX_POINTERS];
    float *space = s->scratch, *x = space + mlp_space_floats(s->network, samples), *action = x + (size_t)inputs * samples;
    float *log_prob = action + (size_t)actions * samples, *value = log_prob + samples, *advantage = value + samples;
    float *target_return = advantage + samples, *out = target_return + samples, *out_value = out + (size_t)outputs * samples;
    float *by_output = out_value + samples, *by_value = by_output + (size_t)outputs * samples, *by_log_std = by_value + samples;
    for (int b = 0; b < samples; b++) {
        const size_t row = (size_t)rows[b];
        prepare(s, rollout->observation + row * inputs, x + (size_t)b * inputs);
        memcpy(action + (size_t)b * actions, rollout->action + row * actions, actions * sizeof(float));
        log_prob[b] = rollout->log_prob[row], value[b] = rollout->value[row];
        advantage[b] = rollout->advantage[row], target_return[b] = rollout->target_return[row];
    }
    for (int64_t i = 0; i < s->num_offsets; i++) gradients[i] = gradient + s->offsets[i];
    mlp_forward(s->network, x, samples, space, out, out_value);
    ppo_loss_gradient(s, (ppo_scalars){scalars[0], scalars[1], scalars[2]}, samples, out, out_value,
                      (ppo_batch){action, log_prob, value, advantage, target_return}, by_log_std + outputs, by_output, by_log_std, by_value,
                      statistics);
    mlp_backward(s->network, x, samples, space, by_output, by_value, gradients);
    if (s->log_std_offset >= 0) memcpy(gradient + s->log_std_offset, by_log_std, outputs * sizeof(float));
}
