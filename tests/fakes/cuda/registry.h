/*
 * Kernels by name, as host functions, because the fake does not read images.
 *
 * A file with kernels adds them from a constructor:
 *
 * 	static struct fake_kernel fill = {
 * 		.name = "fill", .fn = run_fill,
 * 		.n_params = 2, .sizes = {sizeof(CUdeviceptr), sizeof(uint64_t)},
 * 	};
 *
 * 	__attribute__((constructor)) static void add(void)
 * 	{
 * 		registry_add(&fill);
 * 	}
 */
#pragma once
#include "cuda/driver_api.h"
#include <stddef.h>

#define FAKE_MAX_PARAMS 16

struct fake_launch {
	unsigned int grid[3], block[3];
	unsigned int shared_size;
};

/*
 * Does the work of all threads of the launch, on the stream's thread. `params`
 * points to copies of the parameters, made at the launch. A CUdeviceptr is an
 * address that can be used directly. An access that the device may not make
 * becomes the context's error, as it does for a kernel.
 */
typedef void fake_kernel_fn(void **params, const struct fake_launch *launch);

struct fake_kernel {
	const char *name;
	fake_kernel_fn *fn;
	unsigned int n_params;
	size_t sizes[FAKE_MAX_PARAMS]; /* of the parameters, in bytes */
	struct fake_kernel *next;      /* next kernel of the registry */
};

/* `kernel` is borrowed forever. This is not thread-safe, so only constructors
 * call it. */
void registry_add(struct fake_kernel *kernel);
/* Returns the kernel or NULL. */
const struct fake_kernel *registry_find(const char *name);

/* A kernel calls this to end with an error of the context, like a trap. */
__attribute__((noreturn)) void fake_trap(CUresult error);
