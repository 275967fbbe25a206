/* The Nature CNN on 64x64 images, such as Procgen's. */
#define IMAGE 64
#define TRUNK nature64_trunk
#include "nature.h"
