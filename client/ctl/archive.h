/*
 * A directory in which published names are saved. It contains an index, and a
 * safetensors file for each bundle and for each tensor outside of bundles.
 *
 * INDEX (index.json): {"format": "fsdp-save-1", "entries": {name: ENTRY}}
 *   ENTRY: {"file", "size" of the file, "uid", "gid", "mode", "ttl_left_ms" (0:
 *   no limit), "evictable", "device", "metadata": {string: string}, "tensors":
 *   {name in the file: {"dtype", "shape", "xxh3": 16 hexadecimal digits}}}
 *
 * A tensor whose dtype safetensors does not have is stored as bytes. The index
 * is written when all files are complete; until then index.partial.json lists
 * the complete ones. Files are never changed, so both indexes can name the same
 * file.
 */
#pragma once
#include "proto/tensor.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

struct args;
struct error;
struct stat;

#define ARCHIVE_INDEX   "index.json"
#define ARCHIVE_PARTIAL "index.partial.json"
/* The end of the names of the other files, after a number. */
#define ARCHIVE_SUFFIX ".safetensors"

/* Returns "DIRECTORY/NAME", which the caller frees, or NULL if there is no
 * memory. */
char *archive_path(const char *directory, const char *name);

/* Reads and checks the entries of an index. `*ret_status` is the status of the
 * file that was read. Returns -ENOENT if there is no such file. */
int archive_read(const char *directory, const char *index, json_t **ret_entries,
		 struct stat *ret_status, struct error *err);
/* Writes the partial index, also after a signal. */
int archive_write(const char *directory, json_t *entries, struct error *err);
/* Writes the partial index and makes it the index. A partial index that stayed
 * beside the index would bring back an earlier state in the next save. */
int archive_commit(const char *directory, json_t *entries, struct error *err);

/* Makes the directory if it does not exist, and locks it, so that only one save
 * runs at a time. Temporary files are then from a save that was killed, and are
 * removed. */
int archive_lock(const char *directory, int *ret_fd, struct error *err);

/* Removes the files that no entry names: those of removed entries, and those of
 * a save that was killed before it noted them. */
int archive_remove_unused(const char *directory, json_t *entries,
			  struct error *err);

/* Returns the type that the tensor has in its file. */
struct tensor_type archive_file_type(const struct tensor_type *type);

/* These convert a tensor of an entry to and from JSON. archive_make_tensor()
 * returns NULL if there is no memory. */
json_t *archive_make_tensor(const struct tensor_type *type, uint64_t digest);
int archive_read_tensor(const json_t *tensor, struct tensor_type *ret_type,
			uint64_t *ret_digest, struct error *err);

/* The result of a save or a restore, for the report. */
struct archive_result {
	const char *done; /* "written", "restored" */
	uint64_t n_done;
	uint64_t n_kept; /* entries that were there already */
	uint64_t size;
	double seconds;
};

/* Prints the result. */
int archive_report(const struct args *args, const struct archive_result *result,
		   struct error *err);
