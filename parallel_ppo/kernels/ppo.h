/* PPO's loss and its derivative in a network's outputs: `ppo.loss_gradient` to the last bit. The same operations in the same order; exp, log,
 * sums and the product with a matrix are NumPy's own loops, handed over as addresses, so they round as NumPy rounds here. */
#ifndef PARALLEL_PPO_PPO_H
#define PARALLEL_PPO_PPO_H

#include <stddef.h>
#include <stdint.h>

typedef struct {
    void (*loop)(char **arguments, const intptr_t *counts, const intptr_t *strides, void *data); /* on float32 */
    void *data;
} numpy_function;

enum { STATISTICS = 11 }; /* fields of `Statistics`; those after the first six belong to others and stay 0 */

/* What stays the same for a whole run. */
typedef struct {
    numpy_function exp, log, add, matmul;
    int64_t outputs;       /* K: logits, or means */
    int64_t components;    /* choices, A; 0: a Gaussian */
    const int32_t *choices; /* [A], K in sum */
    const float *log_std;  /* [K] of a Gaussian */
    double value_coef, entropy_coef, batch_size;
    int64_t clips_value;
} ppo_settings;

/* What a minibatch needs to know as a whole: `ppo.Scalars`. */
typedef struct {
    double advantage_mean, advantage_scale, clip_range;
} ppo_scalars;

typedef struct {
    const float *action, *log_prob, *value, *advantage, *target_return; /* [B][A or K], the others [B] */
} ppo_batch;

/* Floats of scratch for this many samples. */
size_t ppo_scratch_floats(const ppo_settings *settings, int samples);

/* outputs [B][K], value [B] -> their derivatives, that of log_std [K], and the sums. */
void ppo_loss_gradient(const ppo_settings *settings, ppo_scalars scalars, int samples, const float *outputs, const float *value,
                       ppo_batch batch, float *scratch, float *by_output, float *by_log_std, float *by_value, double *statistics);

#endif
