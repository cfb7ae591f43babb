/*
 * Which kernels this CPU has, and what needs no level.
 */
#include "broker/worker/kernel.h"
#include "broker/worker/kernel_levels.h"
#include "broker/worker/kernel_stream.h"
#include <string.h>

uint32_t kernel_accumulator(uint32_t dtype)
{
	switch (dtype) {
	case DTYPE_F16:
	case DTYPE_BF16:
	case DTYPE_F32:
		return DTYPE_F32;
	case DTYPE_F64:
		return DTYPE_F64;
	case DTYPE_I8:
	case DTYPE_I16:
	case DTYPE_I32:
	case DTYPE_I64:
		return DTYPE_I64;
	case DTYPE_U8:
	case DTYPE_U16:
	case DTYPE_U32:
	case DTYPE_U64:
		return DTYPE_U64;
	default:
		return 0;
	}
}

const struct kernels *kernels_best(void)
{
	const struct kernels *kernels = kernels_get(KERNEL_AVX512);

	if (!kernels)
		kernels = kernels_get(KERNEL_AVX2);
	return kernels ? kernels : kernels_get(KERNEL_GENERIC);
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
#else
const struct kernels *kernels_get(enum kernel_level level)
{
	return level == KERNEL_GENERIC ? &kernels_generic : NULL;
}
#endif
