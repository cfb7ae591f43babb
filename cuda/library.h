/*
 * Libraries that are opened at run time: the driver and NCCL. None is ever
 * closed.
 */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct library {
	void *handle;
	char path[PATH_MAX]; /* of its file, as far as the linker tells */
	bool is_fake;        /* it is a fake, for tests */
};

/* Open the file that the environment variable names, or the library `name`.
 * False: dlerror() has the reason. */
bool library_open(struct library *library, const char *variable,
		  const char *name);

struct library_symbol {
	const char *name;
	size_t offset; /* of its pointer in the table of functions */
};

/* Look up `n` symbols, and store their addresses in the table, NULL for one
 * that is missing. Gives the first that is missing, or NULL. */
const char *library_find(const struct library *library,
			 const struct library_symbol *symbols, size_t n,
			 void *table);
