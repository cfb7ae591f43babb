/*
 * safetensors files: a JSON header that says where each tensor's bytes are,
 * then the bytes.
 *
 * LAYOUT
 *   offset  size  meaning
 *        0     8  N, bytes of header, little-endian, at most 100,000,000
 *        8     N  JSON object, first byte '{', may end in spaces:
 *                 name -> {"dtype", "shape", "data_offsets": [begin, end]};
 *                 "__metadata__" -> {string: string}
 *      8+N     .  data, row-major, little-endian; offsets count from here
 *
 * A file comes from anywhere, so everything is checked before a single byte
 * of data is believed: the tensors must fill the data exactly, without holes,
 * overlaps or a rest, and every size must be what dtype and shape say.
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
	char *name; /* legal by proto/name.h */
	struct tensor_type type;
	uint64_t offset; /* in the file */
	uint64_t size;
};

struct safetensors {
	struct safetensors_entry *entries; /* in the order of their offsets */
	size_t n_entries;
	uint64_t data_size;
	struct json_t *metadata; /* an object of strings; NULL: there is none */
};

#define SAFETENSORS_NULL ((struct safetensors){0})

/*
 * Check a header (the JSON only) of a file with `data_size` bytes of data.
 * Refusals are -EINVAL and name the tensor and the cause.
 */
int safetensors_parse(const char *json, size_t json_size, uint64_t data_size,
		      struct safetensors *ret, struct error *err);

/* Read and check the header of the file `fd`. */
int safetensors_read(int fd, struct safetensors *ret, struct error *err);

void safetensors_deinit(struct safetensors *safetensors);

/* Do such files have the dtype? */
bool safetensors_holds(uint32_t dtype);

/* Is it an object of strings? */
int safetensors_check_metadata(struct json_t *metadata, struct error *err);

struct safetensors_item {
	const char *name;
	struct tensor_type type;
};

/*
 * Make the beginning of a file (the first 8 + N bytes) whose data are the
 * items' elements one after the other, with `metadata` unless that is NULL or
 * empty. free() it. -ENOTSUP: the format has no
 * such dtype.
 */
int safetensors_make_header(const struct safetensors_item *items,
			    size_t n_items, struct json_t *metadata, char **ret,
			    size_t *ret_size, struct error *err);
