/* These kernels are for x86 CPUs with AVX2, and process 256 bits at a time. */
#include "collective/host/kernel_levels.h"

#define KERNELS kernels_avx2
#define LEVEL   "avx2"
#include "collective/host/kernel_body.h"
