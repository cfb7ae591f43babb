/*
 * A model on disk: one safetensors file, several, or an index that names them
 * (NAME.safetensors.index.json).
 *
 * INDEX: {"weight_map": {tensor: file, ...}, "metadata": ...}; the files lie
 * beside it. Its own metadata, the total size, is not kept.
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
	struct input input; /* its path is borrowed from here */
	struct safetensors safetensors;
};

struct model {
	struct model_file *files;
	size_t n_files, n_tensors;
	uint64_t data_size;
	json_t *metadata; /* of all files; where they differ, the last one's */
};

#define MODEL_NULL ((struct model){0})

/* Open all files, and check their headers: no tensor is in two of them, and
 * each is where the index says. */
int model_open(char *const *paths, size_t n_paths, struct model *ret,
	       struct error *err);
void model_close(struct model *model);
