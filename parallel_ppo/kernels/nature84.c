/* The Nature CNN on 84x84 images, such as Atari's. */
#define IMAGE 84
#define TRUNK nature84_trunk
#include "nature.h"
