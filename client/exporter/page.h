/*
 * The files of the status page, which are compiled into the program.
 */
#pragma once
#include <stddef.h>

struct page_file {
	const char *path; /* of the URL */
	const char *type; /* Content-Type */
	const char *bytes;
	size_t size;
};

/* Find a file by its path; NULL: there is no such file. */
const struct page_file *page_find(const char *path);
