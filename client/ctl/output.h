/*
 * A file that appears whole or not at all: written beside its place, synced,
 * then renamed.
 *
 * Standard output ("-") and what is no regular file (a device, a FIFO) are
 * written to as they are, since there is nothing to rename.
 */
#pragma once
#include <stddef.h>

struct error;

struct output {
	int fd;           /* -1: closed */
	char *path;       /* where it will be; NULL: written in place */
	char *temp;       /* where it is until output_commit() */
	const char *name; /* borrowed; for sentences */
};

#define OUTPUT_NULL ((struct output){.fd = -1})

int output_open(const char *path, struct output *ret, struct error *err);
/* Everything or an error; a signal noted by interrupt.h is one (-EINTR). */
int output_write(struct output *output, const void *data, size_t size,
		 struct error *err);
/* The same, for pack.h. */
int output_pack(void *output, const void *data, size_t size, struct error *err);
int output_commit(struct output *output, struct error *err);
/* Without output_commit() before it, nothing is left behind. */
void output_close(struct output *output);
