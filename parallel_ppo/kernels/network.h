/* What the networks have in common: how parameters and gradients are handed over, and how scratch memory is laid out. */
#ifndef PARALLEL_PPO_NETWORK_H
#define PARALLEL_PPO_NETWORK_H

#include <stddef.h>

#ifndef IMAGE
#define IMAGE 64 /* pixels of a side */
#endif

typedef float *const *pointers;
typedef const float *const *const_pointers;

/* The next `count` floats after `at` are the field's, up to a cache line; `s`, `base` and `at` are the caller's. */
#define PLACE(field, count) s.field = base + at, at += ((size_t)(count) + 15) / 16 * 16

#endif
