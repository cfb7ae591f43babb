/*
 * safetensors files. A JSON header says where the bytes of each tensor are, and
 * the bytes follow.
 *
 * LAYOUT
 *   offset  size  meaning
 *        0     8  N, bytes of header, little-endian, at most 100,000,000
 *        8     N  JSON object, first byte '{', may end in spaces:
 *                 name -> {"dtype", "shape", "data_offsets": [begin, end]};
 *                 "__metadata__" -> {string: string}
 *      8+N     .  data, row-major, little-endian; offsets count from here
 *
 * A file may come from any source, so the whole header is checked before any
 * data is used: the tensors must fill the data exactly, without gaps, overlaps
 * or remaining bytes, and each size must match dtype and shape.
 */
#pragma once
#include "proto/tensor.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct error;

#define SAFETENSORS_MAX_HEADER 100000000u
#define SAFETENSORS_METADATA   "__metadata__"

struct json_t;

struct safetensors_entry {
	char *name; /* valid for name_check() */
	struct tensor_type type;
	uint64_t offset; /* in the file */
	uint64_t size;
};

struct safetensors {
	struct safetensors_entry *entries; /* in the order of their offsets */
	size_t n_entries;
	uint64_t data_size;
	/* an object of strings; NULL if there is none */
	struct json_t *metadata;
};

#define SAFETENSORS_NULL ((struct safetensors){0})

/*
 * Parses and checks the JSON of a header. The file has `data_size` bytes of
 * data. Errors are -EINVAL and name the tensor and the cause.
 */
int safetensors_parse(const char *json, size_t json_size, uint64_t data_size,
		      struct safetensors *ret, struct error *err);

/* Reads and checks the header of the file `fd`. */
int safetensors_read(int fd, struct safetensors *ret, struct error *err);

void safetensors_deinit(struct safetensors *safetensors);

/* Returns whether the format has this dtype. */
bool safetensors_holds(uint32_t dtype);

/* Checks that `metadata` is an object of strings. */
int safetensors_check_metadata(struct json_t *metadata, struct error *err);

/* Reads the "shape" of an object. Errors are -EINVAL. */
int safetensors_read_shape(const struct json_t *info, struct tensor_type *type,
			   struct error *err);

struct safetensors_item {
	const char *name;
	struct tensor_type type;
};

/*
 * Makes the beginning of a file, which is its first 8 + N bytes. The elements
 * of the items follow one another in the data. `metadata` is left out if it is
 * NULL or empty. The caller frees the result with free(). Returns -ENOTSUP if
 * the format does not have a dtype, or a tensor has the name of the metadata.
 */
int safetensors_make_header(const struct safetensors_item *items,
			    size_t n_items, struct json_t *metadata, char **ret,
			    size_t *ret_size, struct error *err);
