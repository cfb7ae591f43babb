#include "tests/lib/device_code.h"
#include "tests/lib/device_code/device.h"

#include "cuda/kernels/kernels.cu"

static void run_thread(enum device_code kernel,
		       const struct kernels_params &params)
{
	switch (kernel) {
	case DEVICE_COPY_IN:
		fsdp_copy_in(params);
		break;
	case DEVICE_COPY_OUT:
		fsdp_copy_out(params);
		break;
	case DEVICE_CHUNK_CAT:
		fsdp_chunk_cat(params);
		break;
	case DEVICE_GRAD_OUT:
		fsdp_grad_out(params);
		break;
	case DEVICE_GRAD_ADD:
		fsdp_grad_add(params);
		break;
	}
}

void device_code_run(enum device_code kernel,
		     const struct kernels_params *params, unsigned int n_blocks)
{
	gridDim.x = n_blocks;
	for (blockIdx.x = 0; blockIdx.x < n_blocks; blockIdx.x++) {
		for (threadIdx.x = 0; threadIdx.x < KERNELS_THREADS;
		     threadIdx.x++)
			run_thread(kernel, *params);
	}
}
