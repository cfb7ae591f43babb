/* Reads and writes the index of a directory in which published names are
 * saved. */
#include "client/ctl/archive.h"

#include "client/ctl/args.h"
#include "client/ctl/document.h"
#include "client/ctl/format.h"
#include "client/ctl/output.h"
#include "client/ctl/safetensors.h"
#include "proto/error.h"
#include "proto/name.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define FORMAT "fsdp-save-1"

char *archive_path(const char *directory, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", directory, name) < 0 ? NULL : path;
}

static int out_of_memory(struct error *err)
{
	return error_nomem(err, "the index");
}

/* --- tensors ------------------------------------------------------------- */

struct tensor_type archive_file_type(const struct tensor_type *type)
{
	struct tensor_type bytes = {.dtype = DTYPE_U8, .n_dims = 1};

	if (!safetensors_holds(type->dtype)) {
		bytes.shape[0] = (int64_t)(tensor_type_numel(type) *
					   dtype_size(type->dtype));
		tensor_type_contiguous(&bytes);
		return bytes;
	}
	bytes = *type;
	tensor_type_contiguous(&bytes);
	return bytes;
}

json_t *archive_make_tensor(const struct tensor_type *type, uint64_t digest)
{
	char text[17];

	snprintf(text, sizeof(text), "%016" PRIx64, digest);
	return json_pack("{s:s, s:o, s:s}", "dtype", dtype_name(type->dtype),
			 "shape", document_shape(type->shape, type->n_dims),
			 "xxh3", text);
}

int archive_read_tensor(const json_t *tensor, struct tensor_type *ret_type,
			uint64_t *ret_digest, struct error *err)
{
	const char *dtype = json_string_value(json_object_get(tensor, "dtype"));
	const char *digest = json_string_value(json_object_get(tensor, "xxh3"));
	struct tensor_type type = {.dtype = dtype ? dtype_by_name(dtype) : 0};
	uint64_t size;

	if (!type.dtype)
		return error_set(err, -EINVAL, "its dtype is not valid");
	if (safetensors_read_shape(tensor, &type, err) < 0)
		return -EINVAL;
	if (!digest || strlen(digest) != 16 ||
	    strspn(digest, "0123456789abcdef") != 16)
		return error_set(err, -EINVAL,
				 "its xxh3 is not 16 hexadecimal digits");
	tensor_type_contiguous(&type);
	if (tensor_type_check(&type, &size, err) < 0)
		return -EINVAL;
	*ret_type = type;
	*ret_digest = strtoull(digest, NULL, 16);
	return 0;
}

/* --- the index ----------------------------------------------------------- */

/* Returns whether `name` is a file of the directory itself, so that an index
 * cannot lead to another directory. */
static bool is_file_name(const char *name)
{
	return name && *name && *name != '.' && !strchr(name, '/');
}

static int check_entry(const char *name, json_t *entry, struct error *err)
{
	json_t *tensors = json_object_get(entry, "tensors"), *tensor;
	struct tensor_type type;
	uint64_t digest;
	const char *key;
	int r = name_is_bundle(name) ? name_check_bundle(name, err)
				     : name_check(name, err);

	if (r < 0)
		return r;
	if (!is_file_name(json_string_value(json_object_get(entry, "file"))) ||
	    !json_is_integer(json_object_get(entry, "size")) ||
	    !json_is_integer(json_object_get(entry, "uid")) ||
	    !json_is_integer(json_object_get(entry, "gid")) ||
	    !json_is_integer(json_object_get(entry, "mode")) ||
	    !json_is_integer(json_object_get(entry, "ttl_left_ms")) ||
	    !json_is_boolean(json_object_get(entry, "evictable")) ||
	    !json_is_string(json_object_get(entry, "device")) ||
	    !json_is_object(tensors))
		return error_set(err, -EINVAL,
				 "entry '%.64s' lacks a field, or a field has "
				 "the wrong type",
				 name);
	r = safetensors_check_metadata(json_object_get(entry, "metadata"), err);
	json_object_foreach(tensors, key, tensor)
	{
		if (r == 0)
			r = archive_read_tensor(tensor, &type, &digest, err);
	}
	return r < 0 ? error_wrap(err, r, "entry '%.64s'", name) : 0;
}

static int check_index(json_t *index, json_t **ret_entries, struct error *err)
{
	const char *format =
		json_string_value(json_object_get(index, "format"));
	json_t *entries = json_object_get(index, "entries"), *entry;
	const char *name;
	int r = 0;

	if (!format || strcmp(format, FORMAT) != 0 || !json_is_object(entries))
		return error_set(err, -EINVAL,
				 "another program or a later version of "
				 "fsdpctl save wrote it");
	json_object_foreach(entries, name, entry)
	{
		if (r == 0)
			r = check_entry(name, entry, err);
	}
	if (r == 0)
		*ret_entries = json_incref(entries);
	return r;
}

int archive_read(const char *directory, const char *name, json_t **ret_entries,
		 struct stat *ret_status, struct error *err)
{
	char *path = archive_path(directory, name);
	json_t *index = NULL;
	int r = path ? document_read(path, &index, ret_status, err)
		     : out_of_memory(err);

	if (r == 0) {
		r = check_index(index, ret_entries, err);
		if (r < 0)
			error_wrap(err, r, "%s", path);
	}
	json_decref(index);
	free(path);
	return r;
}

/* Writes all bytes, also after a signal, because the partial index is written
 * then. */
static int write_all(const struct output *output, const char *text,
		     struct error *err)
{
	size_t size = strlen(text);

	while (size) {
		ssize_t n = write(output->fd, text, size);

		if (n < 0 && errno != EINTR)
			return error_errno(err, -errno, "cannot write %s",
					   output->name);
		if (n < 0)
			continue;
		text += n;
		size -= (size_t)n;
	}
	return 0;
}

static int write_text(const char *path, const char *text, struct error *err)
{
	struct output output = OUTPUT_NULL;
	/* The index lists the names of private tensors, so others may not read
	 * it. */
	int r = output_open_private(path, &output, err);

	if (r == 0)
		r = write_all(&output, text, err);
	if (r == 0)
		r = output_commit(&output, err);
	output_close(&output);
	return r;
}

/* Syncs the directory, so that a rename in it survives a crash of the
 * machine. */
static int sync_directory(const char *directory, struct error *err)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int r = fd >= 0 && fsync(fd) == 0
			? 0
			: error_errno(err, -errno, "cannot sync %s", directory);

	if (fd >= 0)
		(void)close(fd);
	return r;
}

int archive_write(const char *directory, json_t *entries, struct error *err)
{
	json_t *index =
		json_pack("{s:s, s:O}", "format", FORMAT, "entries", entries);
	char *text = json_dumps(index, JSON_INDENT(1));
	char *path = archive_path(directory, ARCHIVE_PARTIAL);
	int r = text && path ? write_text(path, text, err) : out_of_memory(err);

	if (r == 0)
		r = sync_directory(directory, err);
	free(path);
	free(text);
	json_decref(index);
	return r;
}

int archive_commit(const char *directory, json_t *entries, struct error *err)
{
	char *partial = archive_path(directory, ARCHIVE_PARTIAL);
	char *index = archive_path(directory, ARCHIVE_INDEX);
	int r = partial && index ? archive_write(directory, entries, err)
				 : out_of_memory(err);

	if (r == 0 && rename(partial, index) < 0)
		r = error_errno(err, -errno, "cannot rename to %s", index);
	if (r == 0)
		r = sync_directory(directory, err);
	free(partial);
	free(index);
	return r;
}

/* --- files --------------------------------------------------------------- */

/* Returns whether it is a name that save makes. */
static bool is_numbered(const char *file)
{
	size_t n = strspn(file, "0123456789");

	return n >= 5 && strcmp(file + n, ARCHIVE_SUFFIX) == 0;
}

int archive_remove_unused(const char *directory, json_t *entries,
			  struct error *err)
{
	json_t *used = json_object(), *entry;
	DIR *files = opendir(directory);
	const struct dirent *file;
	const char *name;
	int r = files ? 0
		      : error_errno(err, -errno, "cannot list %s", directory);

	json_object_foreach(entries, name, entry)
	{
		const char *key =
			json_string_value(json_object_get(entry, "file"));

		if (r == 0 && json_object_set_new(used, key, json_null()))
			r = out_of_memory(err);
	}
	while (r == 0 && (file = readdir(files)))
		if (is_numbered(file->d_name) &&
		    !json_object_get(used, file->d_name))
			(void)unlinkat(dirfd(files), file->d_name, 0);
	if (files)
		(void)closedir(files);
	json_decref(used);
	return r;
}

/* Returns whether it is the temporary file of a file of a save, and not that of
 * another program that writes to the directory. */
static bool is_temporary(const char *file)
{
	static const char begin[] = ".fsdpctl.", index[] = "index.";
	const char *target = file + sizeof(begin) - 1;

	return strncmp(file, begin, sizeof(begin) - 1) == 0 &&
	       (strncmp(target, index, sizeof(index) - 1) == 0 ||
		strspn(target, "0123456789") >= 5);
}

int archive_lock(const char *directory, int *ret_fd, struct error *err)
{
	const struct dirent *file;
	DIR *files;
	int fd;

	if (mkdir(directory, 0700) < 0 && errno != EEXIST)
		return error_errno(err, -errno, "cannot make %s", directory);
	files = opendir(directory);
	fd = files ? fcntl(dirfd(files), F_DUPFD_CLOEXEC, 3) : -1;
	if (fd < 0 || flock(fd, LOCK_EX | LOCK_NB) < 0) {
		int r = error_errno(err, -errno, "cannot lock %s for this save",
				    directory);

		if (fd >= 0)
			(void)close(fd);
		if (files)
			(void)closedir(files);
		return r;
	}
	while ((file = readdir(files)))
		if (is_temporary(file->d_name))
			(void)unlinkat(fd, file->d_name, 0);
	(void)closedir(files);
	*ret_fd = fd;
	return 0;
}

int archive_report(const struct args *args, const struct archive_result *result,
		   struct error *err)
{
	char names[FORMAT_SIZE], size[FORMAT_SIZE];

	if (args_has(args, ARG_JSON))
		return document_print(
			json_pack("{s:o, s:o, s:o, s:f}", result->done,
				  document_number(result->n_done), "kept",
				  document_number(result->n_kept), "bytes",
				  document_number(result->size), "seconds",
				  result->seconds),
			err);
	printf("%s %s, %s in %.2f s; %" PRIu64 " there already\n",
	       format_count(result->n_done, "name", names), result->done,
	       format_size(result->size, size), result->seconds,
	       result->n_kept);
	return 0;
}
