/*
 * The files of the status page, which are in the program.
 */
#pragma once
#include <stddef.h>

struct page_file {
	const char *path; /* of the URL */
	const char *type; /* Content-Type */
	const char *bytes;
	size_t size;
};

/* NULL: there is no such file. */
const struct page_file *page_find(const char *path);
