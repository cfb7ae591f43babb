/*
 * A file that tensors are read from, by its suffix.
 */
#pragma once
#include "client/ctl/safetensors.h"

#include <stdint.h>

struct error;
struct fsdp_tensor;
struct progress;

struct input {
	int fd;           /* -1: closed */
	const char *path; /* borrowed */
	uint64_t size;
};

#define INPUT_NULL ((struct input){.fd = -1})

/* Open a regular file. */
int input_open(const char *path, struct input *ret, struct error *err);
void input_close(struct input *input);

/*
 * The one tensor of the file: .npy, .safetensors (with a single tensor), or
 * .raw, whose type is `raw` (NULL: none was given).
 */
int input_find_tensor(const struct input *input, const struct tensor_type *raw,
		      struct safetensors_entry *ret, struct error *err);

/*
 * Fill `n` tensors, wherever they are, with what the entries say. A file that
 * got shorter is refused, and a signal noted by interrupt.h ends it (-EINTR).
 */
int input_fill(const struct input *input,
	       const struct safetensors_entry *entries,
	       struct fsdp_tensor *const *tensors, size_t n,
	       struct progress *progress, struct error *err);
