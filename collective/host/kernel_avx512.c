/* These kernels are for x86 CPUs with AVX-512 F, BW, DQ and VL, and process 512
 * bits at a time. */
#include "collective/host/kernel_levels.h"

#define KERNELS kernels_avx512
#define LEVEL   "avx512"
#include "collective/host/kernel_body.h"
