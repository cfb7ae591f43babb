/*
 * The table of `fsdp-bench gpu`: what tensors and collectives on a device cost,
 * each beside its floor, in turns in one run.
 *
 * CUDA does not survive fork(). So the table's process never loads the driver:
 * each section is a process of its own, which forks its second processes before
 * it does.
 */
#pragma once
#include "bench.h"
#include "cuda/device.h"
#include "fsdp.h"
#include <sys/types.h>

struct gpu {
	const struct bench *bench;
	int error; /* of finding it: a negative errno, and its sentence */
	char sentence[512];
	struct fsdp_device device; /* the first */
	char name[64];
	uint64_t memory;
	uint32_t n_devices;
	bool is_fake; /* figures mean nothing: everything is small */
};

/* Ask a child about the devices; `ret->error` tells whether there are any. */
void gpu_find(struct gpu *ret, const struct bench *bench);

/* The first of these names, NULL at the end, that is no section of the table;
 * NULL: there is none. */
const char *gpu_find_unknown(char **names);

/* In a process that will not fork: the first device or the `i`th, modulo their
 * number, its context current for good. */
const struct device *gpu_enter(uint32_t i);
CUstream gpu_stream(void);
/* die() with the driver's sentence unless it worked. */
void gpu_must(CUresult result, const char *what);
/* die() with `err`'s sentence if `r` is negative. */
void gpu_check(int r, const struct error *err);

/* One line of the table. Where `size` is not 0, with bandwidths in nccl-tests'
 * words: algbw = size / time, busbw = algbw * bus_factor. */
struct gpu_line {
	const char *name, *variant, *unit;
	uint64_t size;
	double bus_factor;
	struct result result; /* times in us */
};
void gpu_print(const struct gpu *gpu, const struct gpu_line *line);
/* A row that cannot be here. */
void gpu_leave_out(const char *name, const char *why);
/* "64 MiB" */
const char *gpu_format_size(uint64_t size, char ret[32]);

typedef void gpu_fn(const struct gpu *gpu);
gpu_fn gpu_attach, gpu_import, gpu_order, gpu_kernels, gpu_collectives,
	gpu_gemm, gpu_torch;
