/* What the networks have in common: their images, how parameters and gradients are handed over, and how scratch memory is laid out. */
#ifndef PARALLEL_PPO_NETWORK_H
#define PARALLEL_PPO_NETWORK_H

#include <stddef.h>

typedef struct {
    int height, width, channels; /* of an image; equal sides where a network does not say more */
    int factor;   /* IMPALA: times 16, 32 and 32 channels */
    int averages; /* IMPALA: the linear layer reads the mean of each channel (Impoola) */
} network_shape;

typedef float *const *pointers;
typedef const float *const *const_pointers;

/* The next `count` floats after `at` are the field's, up to a cache line; `s`, `base` and `at` are the caller's. */
#define PLACE(field, count) s.field = base + at, at += ((size_t)(count) + 15) / 16 * 16

#endif
