/*
 * The progress of a long transfer, on standard error. On a terminal one line is
 * redrawn; elsewhere a line is printed every few seconds; with --quiet nothing
 * is printed.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *label; /* borrowed */
	uint64_t size, done;
	uint64_t start_ns, last_ns;
	bool is_quiet, is_tty;
	bool is_drawn; /* the line must be erased */
};

void progress_init(struct progress *progress, const char *label, uint64_t size,
		   bool is_quiet);
/* Adds `size` bytes to those that are done. */
void progress_add(struct progress *progress, uint64_t size);
/* Erases the line on the terminal. */
void progress_deinit(struct progress *progress);

/* Returns the seconds since progress_init(). */
double progress_seconds(const struct progress *progress);
