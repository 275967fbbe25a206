/* A trunk for images as `trunk.c` calls it, and how its scratch memory is laid out. The functions are those of api.h. */
#ifndef PARALLEL_PPO_NETWORK_H
#define PARALLEL_PPO_NETWORK_H

#include "api.h"

typedef struct {
    size_t (*packed_floats)(const network_shape *);
    size_t (*saved_floats)(const network_shape *, int, int);
    size_t (*scratch_floats)(const network_shape *, int);
    void (*prepare_scratch)(const network_shape *, float *, int); /* NULL: nothing to prepare */
    void (*pack)(const network_shape *, const_pointers, int, float *, float *);
    void (*forward)(const network_shape *, const uint8_t *, int, const_pointers, const float *, int, float *, float *, float *);
    void (*backward)(const network_shape *, const uint8_t *, int, const_pointers, const float *, float *, float *, const float *, const float *,
                     pointers);
    void (*layer)(const network_shape *, int, int, const uint8_t *, int, const_pointers, const float *, float *, float *, float *, pointers);
} trunk;

extern const trunk impala_trunk, nature64_trunk, nature84_trunk, small_image_trunk;

/* The next `count` floats after `at` are the field's, up to a cache line; `s`, `base` and `at` are the caller's. */
#define PLACE(field, count) s.field = base + at, at += ((size_t)(count) + 15) / 16 * 16

#endif
