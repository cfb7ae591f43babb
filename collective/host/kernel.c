/*
 * This file selects the kernels for this CPU, and has the functions that do not
 * depend on a level.
 */
#include "collective/host/kernel.h"
#include "collective/host/kernel_levels.h"
#include "collective/host/kernel_stream.h"
#include <string.h>
#ifdef __aarch64__
#include <sys/auxv.h>
#endif

const struct kernels *kernels_best(void)
{
	static const enum kernel_level best_first[] = {
		KERNEL_NEOVERSE, KERNEL_AVX512, KERNEL_AVX2, KERNEL_GENERIC};
	const struct kernels *kernels = NULL;

	for (size_t i = 0; !kernels; i++)
		kernels = kernels_get(best_first[i]);
	return kernels;
}

void kernel_flush(void)
{
	stream_flush();
}

#ifdef __x86_64__
const struct kernels *kernels_get(enum kernel_level level)
{
	__builtin_cpu_init();
	switch (level) {
	case KERNEL_GENERIC:
		return &kernels_generic;
	case KERNEL_AVX2:
		return __builtin_cpu_supports("avx2") ? &kernels_avx2 : NULL;
	case KERNEL_AVX512:
		return __builtin_cpu_supports("avx512f") &&
				       __builtin_cpu_supports("avx512bw") &&
				       __builtin_cpu_supports("avx512dq") &&
				       __builtin_cpu_supports("avx512vl")
			       ? &kernels_avx512
			       : NULL;
	default:
		return NULL;
	}
}
#elif defined(__aarch64__)
/* These are defined here because <asm/hwcap.h> of older systems lacks some of
 * them. */
#define HAS_FP16       (UINT64_C(1) << 9)
#define HAS_ASIMD_FP16 (UINT64_C(1) << 10)
#define HAS_BF16       (UINT64_C(1) << 14) /* in AT_HWCAP2 */

const struct kernels *kernels_get(enum kernel_level level)
{
	const uint64_t both = HAS_FP16 | HAS_ASIMD_FP16;

	switch (level) {
	case KERNEL_GENERIC: /* all aarch64 CPUs have NEON */
		return &kernels_generic;
	case KERNEL_NEOVERSE:
		return (getauxval(AT_HWCAP) & both) == both &&
				       (getauxval(AT_HWCAP2) & HAS_BF16)
			       ? &kernels_neoverse
			       : NULL;
	default:
		return NULL;
	}
}
#else
const struct kernels *kernels_get(enum kernel_level level)
{
	return level == KERNEL_GENERIC ? &kernels_generic : NULL;
}
#endif
