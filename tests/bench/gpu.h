/*
 * The table of `fsdp-bench gpu`: the costs of tensors and collectives on a
 * device. Each is measured in turns with its floor, in one run.
 *
 * CUDA does not survive fork(). So the table's process never loads the driver.
 * Each section is a process of its own, which forks its other processes before
 * it loads the driver.
 */
#pragma once
#include "bench.h"
#include "cuda/device.h"
#include "fsdp.h"
#include <sys/types.h>

struct gpu {
	const struct bench *bench;
	int error; /* negative errno and sentence of the search for devices */
	char sentence[512];
	struct fsdp_device device; /* the first device */
	char name[64];
	uint64_t memory;
	uint32_t n_devices;
	/* the driver is a fake: figures mean nothing, and all sizes are
	 * small */
	bool is_fake;
};

/* Look for devices in a child. `ret->error` tells whether there are any. */
void gpu_find(struct gpu *ret, const struct bench *bench);

/* Returns the first of these names, which end with NULL, that is not a section
 * of the table, or NULL. */
const char *gpu_find_unknown(char **names);

/* Open the `i`th device, modulo the number of devices, and make its context
 * current. Only a process that will not fork may call this. */
const struct device *gpu_enter(uint32_t i);
CUstream gpu_stream(void);
/* Call die() with the driver's sentence unless the call succeeded. */
void gpu_must(CUresult result, const char *what);
/* Call die() with `err`'s sentence if `r` is negative. */
void gpu_check(int r, const struct error *err);

/* One line of the table. If `size` is not 0, it has bandwidths in nccl-tests'
 * terms: algbw = size / time, busbw = algbw * bus_factor. */
struct gpu_line {
	const char *name, *variant, *unit;
	uint64_t size;
	double bus_factor;
	struct result result; /* times in us */
};
void gpu_print(const struct gpu *gpu, const struct gpu_line *line);
/* Print a row that cannot be measured here. */
void gpu_leave_out(const char *name, const char *why);
/* Write a size such as "64 MiB". */
const char *gpu_format_size(uint64_t size, char ret[32]);

typedef void gpu_fn(const struct gpu *gpu);
gpu_fn gpu_attach, gpu_import, gpu_order, gpu_kernels, gpu_collectives,
	gpu_gemm, gpu_torch;
