/* The Nature CNN on 84x84 images, such as Atari's. */
#define IMAGE 84
#define NATURE(name) nature84_##name
#include "nature.h"
