/* PPO's loss and its derivative in a network's outputs: the operations of `ppo.loss_gradient` in the same order, with the same bits. */
#ifndef PARALLEL_PPO_PPO_H
#define PARALLEL_PPO_PPO_H

#include "api.h"

/* What a minibatch needs to know as a whole: `ppo.Scalars`. */
typedef struct {
    double advantage_mean, advantage_scale, clip_range;
} ppo_scalars;

typedef struct {
    const float *action, *log_prob, *value, *advantage, *target_return; /* [B][A or K], the others [B] */
} ppo_batch;

/* Floats of scratch for this many samples. */
size_t ppo_scratch_floats(const microbatch_settings *settings, int samples);

/* outputs [B][K], value [B] -> their derivatives, that of log_std [K], and the sums. */
void ppo_loss_gradient(const microbatch_settings *settings, ppo_scalars scalars, int samples, const float *outputs, const float *value,
                       ppo_batch batch, float *scratch, float *by_output, float *by_log_std, float *by_value, double *statistics);

#endif
