/* Impoola, the IMPALA CNN whose linear layer reads the mean of each channel of the last block. */
#define FLAT 32
#define IMPALA(name) impoola_##name
#include "impala.h"
