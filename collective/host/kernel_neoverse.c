/* These kernels are for Armv8.2 CPUs with fp16 and bf16, as in Grace, and
 * process 128 bits at a time. */
#include "collective/host/kernel_levels.h"

#define KERNELS       kernels_neoverse
#define LEVEL         "neoverse"
#define KERNEL_NARROW "collective/host/kernel_neon.h"
#include "collective/host/kernel_body.h"
