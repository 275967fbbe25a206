/* Flat vectors of parameters (`flat.c`): what other kernels call. */
#ifndef PARALLEL_PPO_FLAT_H
#define PARALLEL_PPO_FLAT_H

#include "api.h"

typedef struct {
    double beta1, beta2, rate, correction, epsilon;
} adam_numbers;

/* Parameters, first and second moment -> the same after a step; in place where both are the same. */
void flat_adam_into(const float *const from[3], float *const into[3], const float *gradient, size_t count, double scale, adam_numbers numbers);

#endif
