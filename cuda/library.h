/*
 * Libraries that are opened at run time: the driver and NCCL. They are never
 * closed.
 */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <stddef.h>

struct library {
	void *handle;
	/* path of its file, if the dynamic linker knows it */
	char path[PATH_MAX];
	bool is_fake; /* a fake for tests */
};

/* Opens the file that the environment variable names, or else the library
 * `name`. If it returns false, dlerror() has the reason. */
bool library_open(struct library *library, const char *variable,
		  const char *name);

struct library_symbol {
	const char *name;
	size_t offset; /* of the function pointer in the table */
};

/* Looks up `n` symbols and stores their addresses in the table; the address of
 * a missing symbol is NULL. Returns the name of the first missing symbol, or
 * NULL. */
const char *library_find(const struct library *library,
			 const struct library_symbol *symbols, size_t n,
			 void *table);
