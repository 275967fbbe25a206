/* The IMPALA CNN: the linear layer reads every number of the last block. */
#define FLAT 2048
#define IMPALA(name) impala_##name
#include "impala.h"
