/* The kernels for every CPU. */
#include "broker/worker/kernel_levels.h"

#define KERNELS kernels_generic
#define LEVEL   "generic"
#include "broker/worker/kernel_body.h"
