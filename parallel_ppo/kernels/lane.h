/* The gradient of a whole lane of PPO with MLPs in one call: its samples from the slab, the network, the loss, and back. */
#ifndef PARALLEL_PPO_LANE_H
#define PARALLEL_PPO_LANE_H

#include "ppo.h"

enum { MAX_POINTERS = 64 }; /* of parameters: 4 for each layer and 4 for the heads */

/* Of one process; what is of a run but not of the loss. Offsets are floats from the start of a flat vector. */
typedef struct {
    ppo_settings loss;
    int64_t layers, num_offsets, log_std_offset; /* the last is -1 without one */
    const int32_t *sizes;                        /* [layers + 1] */
    const int64_t *offsets;                      /* of each parameter, in the order of `mlp.c` */
    float *parameters;                           /* the flat vector */
    float *packed, *scratch;
    int64_t normalizes;
    const float *observation_mean, *observation_scale;
    double observation_clip;
} lane_settings;

/* One rollout's columns, [T * E][...]. */
typedef struct {
    const float *observation, *action, *log_prob, *value, *advantage, *target_return;
} lane_slab;

/* Floats of scratch for the largest lane. */
size_t lane_scratch_floats(const lane_settings *settings, int samples);

/* After every change of the parameters. */
void lane_pack(const lane_settings *settings);

/* Overwrites the lane's gradient, a flat vector (what lies between the parameters is left alone), and its statistics. */
void lane_gradient(const lane_settings *settings, const lane_slab *slab, const int64_t *rows, int samples, const double *scalars,
                   float *gradient, double *statistics);

#endif
