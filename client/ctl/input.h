/*
 * A file that tensors are read from. Its suffix tells the format.
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

/* Opens a file and refuses anything but a regular file. `path` is borrowed. */
int input_open(const char *path, struct input *ret, struct error *err);
void input_close(struct input *input);

/*
 * Finds the only tensor of a .npy, .safetensors or .raw file. `raw` is the type
 * of a .raw file, or NULL if the user gave no type.
 */
int input_find_tensor(const struct input *input, const struct tensor_type *raw,
		      struct safetensors_entry *ret, struct error *err);
