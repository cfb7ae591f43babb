/*
 * A model on disk: one safetensors file, several, or an index that names them
 * (NAME.safetensors.index.json).
 *
 * INDEX: {"weight_map": {tensor: file, ...}, "metadata": ...}. The files are in
 * the directory of the index. The metadata of the index, which is the total
 * size, is not used.
 */
#pragma once
#include "client/ctl/input.h"
#include "client/ctl/safetensors.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

struct error;

struct model_file {
	char *path;
	struct input input; /* borrows `path` */
	struct safetensors safetensors;
};

struct model {
	struct model_file *files;
	size_t n_files, n_tensors;
	uint64_t data_size;
	/* of all files; for a key in several files, of the last one */
	json_t *metadata;
};

#define MODEL_NULL ((struct model){0})

/* Opens all files and checks their headers: no tensor may be in two files, and
 * each must be in the file that the index says. */
int model_open(char *const *paths, size_t n_paths, struct model *ret,
	       struct error *err);
void model_close(struct model *model);
