/* The tables of kernels, one for each way the kernels are compiled. */
#pragma once
#include "collective/host/kernel.h"

extern const struct kernels kernels_generic, kernels_avx2, kernels_avx512,
	kernels_neoverse;
