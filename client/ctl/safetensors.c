/*
 * Reads and writes safetensors files. jansson refuses invalid JSON and UTF-8,
 * deep nesting, duplicate keys and integers above 64 bits. This file checks
 * what the values mean. jansson does not treat a number with a point or an
 * exponent as an integer, so no offset is converted through a double.
 */
#include "client/ctl/safetensors.h"

#include "client/ctl/document.h"
#include "proto/error.h"
#include "proto/name.h"

#include <endian.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* clang-format off */
static const char *const dtype_names[DTYPE_MAX + 1] = {
	[DTYPE_BOOL] = "BOOL", [DTYPE_U8] = "U8", [DTYPE_I8] = "I8",
	[DTYPE_U16] = "U16", [DTYPE_I16] = "I16", [DTYPE_U32] = "U32",
	[DTYPE_I32] = "I32", [DTYPE_U64] = "U64", [DTYPE_I64] = "I64",
	[DTYPE_F16] = "F16", [DTYPE_BF16] = "BF16", [DTYPE_F32] = "F32",
	[DTYPE_F64] = "F64", [DTYPE_F8_E4M3] = "F8_E4M3",
	[DTYPE_F8_E5M2] = "F8_E5M2", [DTYPE_C64] = "C64",
};
/* clang-format on */

bool safetensors_holds(uint32_t dtype)
{
	return dtype <= DTYPE_MAX && dtype_names[dtype];
}

static uint32_t dtype_of(const char *name)
{
	for (uint32_t i = 1; i <= DTYPE_MAX; i++) {
		if (dtype_names[i] && strcmp(dtype_names[i], name) == 0)
			return i;
	}
	return 0;
}

static int read_dtype(const json_t *info, struct tensor_type *type,
		      struct error *err)
{
	const char *name = json_string_value(json_object_get(info, "dtype"));

	if (!name)
		return error_set(err, -EINVAL, "its dtype is not a string");
	type->dtype = dtype_of(name);
	if (!type->dtype)
		return error_set(err, -EINVAL, "dtype '%.32s' is unknown",
				 name);
	return 0;
}

int safetensors_read_shape(const json_t *info, struct tensor_type *type,
			   struct error *err)
{
	const json_t *shape = json_object_get(info, "shape");
	size_t n = json_array_size(shape);

	if (!json_is_array(shape))
		return error_set(err, -EINVAL, "its shape is not an array");
	if (n > TENSOR_MAX_DIMS)
		return error_set(err, -EINVAL,
				 "it has %zu dimensions, more than %d", n,
				 TENSOR_MAX_DIMS);
	for (size_t i = 0; i < n; i++) {
		const json_t *size = json_array_get(shape, i);

		if (!json_is_integer(size) || json_integer_value(size) < 0)
			return error_set(err, -EINVAL,
					 "dimension %zu of its shape is not a "
					 "whole number from 0",
					 i);
		type->shape[i] = json_integer_value(size);
	}
	type->n_dims = (uint32_t)n;
	return 0;
}

static int read_offsets(const json_t *info, uint64_t *ret_begin,
			uint64_t *ret_end, struct error *err)
{
	const json_t *offsets = json_object_get(info, "data_offsets");
	const json_t *begin = json_array_get(offsets, 0);
	const json_t *end = json_array_get(offsets, 1);

	if (json_array_size(offsets) != 2 || !json_is_integer(begin) ||
	    !json_is_integer(end))
		return error_set(err, -EINVAL,
				 "its data_offsets are not two whole numbers");
	if (json_integer_value(begin) < 0)
		return error_set(err, -EINVAL, "its data_offsets are negative");
	if (json_integer_value(end) < json_integer_value(begin))
		return error_set(err, -EINVAL, "it ends before it begins");
	*ret_begin = (uint64_t)json_integer_value(begin);
	*ret_end = (uint64_t)json_integer_value(end);
	return 0;
}

/* Reads offsets relative to the data; place_entries() adds the start of the
 * data. */
static int read_info(const json_t *info, struct safetensors_entry *entry,
		     struct error *err)
{
	uint64_t begin = 0, end = 0, size = 0;
	int r;

	if (!json_is_object(info))
		return error_set(err, -EINVAL, "it is not an object");
	r = read_dtype(info, &entry->type, err);
	if (r < 0)
		return r;
	r = safetensors_read_shape(info, &entry->type, err);
	if (r < 0)
		return r;
	r = read_offsets(info, &begin, &end, err);
	if (r < 0)
		return r;
	tensor_type_contiguous(&entry->type);
	r = tensor_type_check(&entry->type, &size, err);
	if (r < 0)
		return r;
	if (end - begin != size)
		return error_set(
			err, -EINVAL,
			"its data_offsets span %" PRIu64
			" bytes, but its dtype and shape need %" PRIu64,
			end - begin, size);
	entry->offset = begin;
	entry->size = size;
	return 0;
}

static int read_entry(const char *name, const json_t *info,
		      struct safetensors_entry *entry, struct error *err)
{
	int r;

	r = name_check(name, err);
	if (r < 0)
		return error_wrap(err, -EINVAL, "tensor '%.64s'", name);
	r = read_info(info, entry, err);
	if (r < 0)
		return error_wrap(err, -EINVAL, "tensor '%s'", name);
	entry->name = strdup(name);
	if (!entry->name)
		return error_nomem(err, "the header");
	return 0;
}

int safetensors_check_metadata(json_t *metadata, struct error *err)
{
	const char *key;
	json_t *value;

	if (!json_is_object(metadata))
		return error_set(err, -EINVAL, "__metadata__ is not an object");
	json_object_foreach(metadata, key, value)
	{
		if (!json_is_string(value))
			return error_set(err, -EINVAL,
					 "__metadata__ '%.64s' is not a string",
					 key);
	}
	return 0;
}

static int read_entries(json_t *header, struct safetensors *safetensors,
			struct error *err)
{
	const char *name;
	json_t *info;
	int r;

	/* One more element, because calloc(0) may return NULL without being out
	 * of memory. */
	safetensors->entries = calloc(json_object_size(header) + 1,
				      sizeof(*safetensors->entries));
	if (!safetensors->entries)
		return error_nomem(err, "the header");
	json_object_foreach(header, name, info)
	{
		if (strcmp(name, SAFETENSORS_METADATA) == 0) {
			r = safetensors_check_metadata(info, err);
			safetensors->metadata = json_incref(info);
		} else {
			r = read_entry(
				name, info,
				&safetensors->entries[safetensors->n_entries],
				err);
			safetensors->n_entries += r == 0;
		}
		if (r < 0)
			return r;
	}
	return 0;
}

/* Sorts by offset. Empty tensors come before the tensor that begins at their
 * offset. */
static int compare_entries(const void *a, const void *b)
{
	const struct safetensors_entry *x = a, *y = b;

	if (x->offset != y->offset)
		return x->offset < y->offset ? -1 : 1;
	if (x->size != y->size)
		return x->size < y->size ? -1 : 1;
	return strcmp(x->name, y->name);
}

/* Checks that the sorted entries fill the data exactly. */
static int check_cover(const struct safetensors *safetensors, struct error *err)
{
	uint64_t at = 0;

	for (size_t i = 0; i < safetensors->n_entries; i++) {
		const struct safetensors_entry *entry =
			&safetensors->entries[i];

		if (entry->offset < at)
			return error_set(err, -EINVAL,
					 "tensor '%s' overlaps with '%s'",
					 entry->name, entry[-1].name);
		if (entry->offset > at)
			return error_set(
				err, -EINVAL,
				"%" PRIu64
				" bytes before tensor '%s' belong to no tensor",
				entry->offset - at, entry->name);
		if (entry->size > safetensors->data_size - at)
			return error_set(
				err, -EINVAL,
				"tensor '%s' needs %" PRIu64
				" bytes, but the file has only %" PRIu64
				" left: it is truncated",
				entry->name, entry->size,
				safetensors->data_size - at);
		at += entry->size;
	}
	if (at != safetensors->data_size)
		return error_set(
			err, -EINVAL,
			"%" PRIu64
			" bytes after the last tensor belong to no tensor",
			safetensors->data_size - at);
	return 0;
}

int safetensors_parse(const char *json, size_t json_size, uint64_t data_size,
		      struct safetensors *ret, struct error *err)
{
	struct safetensors safetensors = {.data_size = data_size};
	json_error_t json_error;
	json_t *header;
	int r;

	if (json_size == 0 || json[0] != '{')
		return error_set(err, -EINVAL,
				 "it is not a safetensors file: the header "
				 "does not begin with '{'");
	header = json_loadb(json, json_size, JSON_REJECT_DUPLICATES,
			    &json_error);
	if (!header)
		return error_set(err, -EINVAL,
				 "the header is not valid JSON at byte %d: %s",
				 json_error.position, json_error.text);
	r = read_entries(header, &safetensors, err);
	if (r < 0)
		goto out;
	qsort(safetensors.entries, safetensors.n_entries,
	      sizeof(*safetensors.entries), compare_entries);
	r = check_cover(&safetensors, err);
	if (r < 0)
		goto out;
	for (size_t i = 0; i < safetensors.n_entries; i++)
		safetensors.entries[i].offset += 8 + json_size;
	*ret = safetensors;
	safetensors = SAFETENSORS_NULL;
out:
	safetensors_deinit(&safetensors);
	json_decref(header);
	return r;
}

void safetensors_deinit(struct safetensors *safetensors)
{
	for (size_t i = 0; i < safetensors->n_entries; i++)
		free(safetensors->entries[i].name);
	free(safetensors->entries);
	json_decref(safetensors->metadata);
	*safetensors = SAFETENSORS_NULL;
}

static int read_at(int fd, void *buffer, size_t size, uint64_t offset,
		   struct error *err)
{
	char *p = buffer;

	while (size) {
		ssize_t n = pread(fd, p, size, (off_t)offset);

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno,
					   "cannot read the header");
		if (n == 0)
			return error_set(err, -EINVAL,
					 "the file ends within its header");
		p += n;
		size -= (size_t)n;
		offset += (uint64_t)n;
	}
	return 0;
}

/* Reads N and checks it against the size of the file. */
static int read_header_size(int fd, uint64_t file_size, size_t *ret,
			    struct error *err)
{
	uint64_t size;
	int r;

	if (file_size < sizeof(size))
		return error_set(err, -EINVAL,
				 "the file has %" PRIu64
				 " bytes, too few for a header",
				 file_size);
	r = read_at(fd, &size, sizeof(size), 0, err);
	if (r < 0)
		return r;
	size = le64toh(size);
	if (size > SAFETENSORS_MAX_HEADER)
		return error_set(err, -EINVAL,
				 "a header of %" PRIu64
				 " bytes is more than %u: this is not a "
				 "safetensors file",
				 size, SAFETENSORS_MAX_HEADER);
	if (size > file_size - sizeof(size))
		return error_set(err, -EINVAL,
				 "the header has %" PRIu64
				 " bytes, but the file only %" PRIu64
				 ": it is truncated",
				 size, file_size);
	*ret = (size_t)size;
	return 0;
}

int safetensors_read(int fd, struct safetensors *ret, struct error *err)
{
	char *header = NULL;
	uint64_t file_size;
	struct stat status;
	size_t size = 0;
	int r;

	if (fstat(fd, &status) < 0)
		return error_errno(err, -errno, "cannot inspect the file");
	file_size = (uint64_t)status.st_size;
	r = read_header_size(fd, file_size, &size, err);
	if (r < 0)
		return r;
	header = malloc(size + 1);
	if (!header)
		return error_nomem(err, "a header of %zu bytes", size);
	r = read_at(fd, header, size, 8, err);
	if (r == 0)
		r = safetensors_parse(header, size, file_size - 8 - size, ret,
				      err);
	free(header);
	return r;
}

/* Makes {"dtype": ..., "shape": [...], "data_offsets": [begin, end]}. */
static json_t *make_info(const struct tensor_type *type, uint64_t begin,
			 uint64_t end)
{
	return json_pack("{s:s, s:o, s:[I, I]}", "dtype",
			 dtype_names[type->dtype], "shape",
			 document_shape(type->shape, type->n_dims),
			 "data_offsets", (json_int_t)begin, (json_int_t)end);
}

static int make_object(const struct safetensors_item *items, size_t n_items,
		       json_t *object, struct error *err)
{
	uint64_t at = 0;

	for (size_t i = 0; i < n_items; i++) {
		const struct tensor_type *type = &items[i].type;
		uint64_t size =
			tensor_type_numel(type) * dtype_size(type->dtype);

		if (strcmp(items[i].name, SAFETENSORS_METADATA) == 0)
			return error_set(err, -ENOTSUP,
					 "safetensors cannot hold a tensor "
					 "of the name '%s'; use .raw",
					 items[i].name);
		if (!safetensors_holds(type->dtype))
			return error_set(err, -ENOTSUP,
					 "tensor '%s': safetensors cannot hold "
					 "%s; use .raw",
					 items[i].name,
					 dtype_name(type->dtype));
		if (json_object_set_new(object, items[i].name,
					make_info(type, at, at + size)))
			return error_nomem(err, "the header");
		at += size;
	}
	return 0;
}

/* Puts the length before the JSON and spaces after it, so that the offset of
 * the data is a multiple of 8. */
static int frame_header(const char *json, char **ret, size_t *ret_size,
			struct error *err)
{
	size_t size = strlen(json), padded = (size + 7) & ~(size_t)7;
	uint64_t length = htole64(padded);
	char *header = malloc(sizeof(length) + padded);

	if (padded > SAFETENSORS_MAX_HEADER) {
		free(header);
		return error_set(err, -E2BIG,
				 "a header of %zu bytes is too large for "
				 "safetensors",
				 padded);
	}
	if (!header)
		return error_nomem(err, "the header");
	memcpy(header, &length, sizeof(length));
	memcpy(header + sizeof(length), json, size);
	memset(header + sizeof(length) + size, ' ', padded - size);
	*ret = header;
	*ret_size = sizeof(length) + padded;
	return 0;
}

int safetensors_make_header(const struct safetensors_item *items,
			    size_t n_items, json_t *metadata, char **ret,
			    size_t *ret_size, struct error *err)
{
	json_t *object = json_object();
	char *json = NULL;
	int r = 0;

	if (json_object_size(metadata) &&
	    json_object_set(object, SAFETENSORS_METADATA, metadata))
		r = error_nomem(err, "the header");
	if (r == 0)
		r = make_object(items, n_items, object, err);
	if (r < 0)
		goto out;
	json = json_dumps(object, JSON_COMPACT);
	if (!json) {
		r = error_nomem(err, "the header");
		goto out;
	}
	r = frame_header(json, ret, ret_size, err);
out:
	free(json);
	json_decref(object);
	return r;
}
