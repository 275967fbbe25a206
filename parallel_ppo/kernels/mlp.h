/* Two MLPs of the same shape (`mlp.c`): what other kernels call. */
#ifndef PARALLEL_PPO_MLP_H
#define PARALLEL_PPO_MLP_H

#include "network.h"

size_t mlp_packed_floats(int layers, const int *sizes);
size_t mlp_space_floats(int layers, const int *sizes, int samples);
void mlp_pack(int layers, const int *sizes, const_pointers parameters, float *packed);
void mlp_forward(int layers, const int *sizes, int outputs, int values, const_pointers parameters, const float *packed, const float *x,
                 int samples, float *space, float *action, float *value);
void mlp_backward(int layers, const int *sizes, int outputs, int values, const_pointers parameters, const float *x, int samples,
                  float *space, const float *by_action, const float *by_value, pointers gradients);

#endif
