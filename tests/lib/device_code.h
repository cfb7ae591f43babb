/*
 * The kernels' own code (cuda/kernels/kernels.cu), compiled for the CPU, so
 * that tests cover it on machines without a GPU. It is built if there is a C++
 * compiler.
 */
#pragma once
#include "cuda/kernels/params.h"
#ifdef __cplusplus
extern "C" {
#endif

enum device_code {
	DEVICE_COPY_IN,
	DEVICE_COPY_OUT,
	DEVICE_CHUNK_CAT,
	DEVICE_GRAD_OUT,
	DEVICE_GRAD_ADD,
};

/* Runs all threads of a launch with `n_blocks` blocks, one after another. */
void device_code_run(enum device_code kernel,
		     const struct kernels_params *params,
		     unsigned int n_blocks);

#ifdef __cplusplus
}
#endif
