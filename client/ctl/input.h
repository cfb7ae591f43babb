/*
 * A file that tensors are read from, by its suffix.
 */
#pragma once
#include "client/ctl/safetensors.h"

#include <stdint.h>

struct error;

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
