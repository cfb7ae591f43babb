/*
 * A kernel that writes to memory to which it may not write. A driver refuses a
 * copy or a fill there; only a kernel faults.
 */
#pragma once
#include "cuda/context.h"
#include "cuda/kernels.h"
#include "proto/error.h"
#include "proto/tensor.h"
#include "tests/lib/gpu.h"
#include <errno.h>
#include <stdio.h>

#define STRIKE_SIZE 16

/* Skips the test on a real driver if this build has no kernels. */
static inline void need_kernels(void)
{
	if (!is_fake() && kernels_load(NULL) == -ENOSYS)
		cr_skip_test("needs kernels, which are built where nvcc is");
}

/* Queues a kernel that writes zeros to STRIKE_SIZE bytes at `to`. Fails like
 * kernels_load(). */
static inline int strike(const struct device *device, CUdeviceptr to,
			 CUstream stream)
{
	const struct kernels_entry entry = {
		.to = to,
		.from_dtype = DTYPE_U8,
		.to_dtype = DTYPE_U8,
		.padded_numel = STRIKE_SIZE,
	};
	struct kernels_launch launch = {.n_entries = 1, .factor = 1};
	/* it is never freed, because the kernel uses it */
	static struct kernels_table *table;
	struct error err = ERROR_NULL;
	int r = kernels_table_new(device, KERNELS_COPY_IN, &entry, 1, &table,
				  &err);

	launch.table = table;
	if (r == 0)
		r = kernels_launch(&launch, stream, &err);
	if (r < 0)
		fprintf(stderr, "%s\n", err.msg);
	return r;
}
