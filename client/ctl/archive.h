/*
 * A directory in which published names are saved: an index, and a safetensors
 * file for each bundle and each other tensor.
 *
 * INDEX (index.json): {"format": "fsdp-save-1", "entries": {name: ENTRY}}
 *   ENTRY: {"file", "size" of the file, "uid", "gid", "mode", "ttl_left_ms" (0:
 *   none), "evictable", "device", "metadata": {string: string}, "tensors":
 *   {name in the file: {"dtype", "shape", "xxh3": 16 hexadecimal digits}}}
 *
 * A tensor whose dtype safetensors files do not have is bytes in its file. The
 * index appears when all files are there; until then index.partial.json lists
 * those that are. Files are never changed, so both can name one.
 */
#pragma once
#include "proto/tensor.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct args;
struct error;

#define ARCHIVE_INDEX   "index.json"
#define ARCHIVE_PARTIAL "index.partial.json"

/* "DIRECTORY/NAME", to be freed. NULL: no memory. */
char *archive_path(const char *directory, const char *name);

/* The checked entries of an index; -ENOENT, without a sentence: there is no
 * such file. */
int archive_read(const char *directory, const char *index, json_t **ret_entries,
		 struct error *err);
/* Written to a temporary file, synced and renamed. */
int archive_write(const char *directory, const char *index, json_t *entries,
		  struct error *err);

/* The type that a tensor has in its file. */
struct tensor_type archive_file_type(const struct tensor_type *type);

/* A tensor of an entry, to and from JSON. NULL: no memory. */
json_t *archive_make_tensor(const struct tensor_type *type, uint64_t digest);
int archive_read_tensor(const json_t *tensor, struct tensor_type *ret_type,
			uint64_t *ret_digest, struct error *err);

/* What a save or a restore has done. */
struct archive_result {
	const char *done; /* "written", "restored" */
	uint64_t n_done;
	uint64_t n_kept; /* that were there already */
	uint64_t size;
	double seconds;
};

/* Print it. */
int archive_report(const struct args *args, const struct archive_result *result,
		   struct error *err);
