/* The kernels for Armv8.2 CPUs with fp16 and bf16, as in Grace: 128 bits at a
 * time. */
#include "broker/worker/kernel_levels.h"

#define KERNELS       kernels_neoverse
#define LEVEL         "neoverse"
#define KERNEL_NARROW "broker/worker/kernel_neon.h"
#include "broker/worker/kernel_body.h"
