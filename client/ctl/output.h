/*
 * A file that appears complete or not at all: it is written to a temporary file
 * in the same directory, synced and renamed. It gets the mode of the file that
 * it replaces.
 *
 * Standard output ("-") and special files (a device, a FIFO) are written
 * directly, since they cannot be renamed.
 */
#pragma once
#include <stddef.h>

struct error;

struct output {
	int fd;           /* -1: closed */
	char *path;       /* the final path; NULL: it is written directly */
	char *temp;       /* the path until output_commit() */
	const char *name; /* borrowed; for errors */
};

#define OUTPUT_NULL ((struct output){.fd = -1})

int output_open(const char *path, struct output *ret, struct error *err);
/* The same for a file that only this user may read, at any time. A link at
 * `path` is replaced: whoever made it could choose which file root writes. */
int output_open_private(const char *path, struct output *ret,
			struct error *err);
/* Writes all bytes. A signal noted by interrupt.h is an error (-EINTR). */
int output_write(struct output *output, const void *data, size_t size,
		 struct error *err);
/* The same as output_write(), as a pack_fn. */
int output_pack(void *output, const void *data, size_t size, struct error *err);
int output_commit(struct output *output, struct error *err);
/* Closes the file. Without output_commit() before, the temporary file is
 * removed. */
void output_close(struct output *output);
