/* These kernels are for every CPU. */
#include "collective/host/kernel_levels.h"

#define KERNELS kernels_generic
#define LEVEL   "generic"
#include "collective/host/kernel_body.h"
