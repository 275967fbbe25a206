/* The Nature CNN on 64x64 images, such as Procgen's. */
#define IMAGE 64
#define NATURE(name) nature64_##name
#include "nature.h"
