/*
 * How far a long transfer is, on standard error: one line that is drawn again
 * on a terminal, a plain line every few seconds elsewhere, nothing if quiet.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct progress {
	const char *label; /* borrowed */
	uint64_t size, done;
	uint64_t start_ns, last_ns;
	bool is_quiet, is_tty;
	bool is_drawn; /* the terminal's line has something on it */
};

void progress_init(struct progress *progress, const char *label, uint64_t size,
		   bool is_quiet);
/* `size` more bytes are done. */
void progress_add(struct progress *progress, uint64_t size);
/* Wipe the terminal's line. */
void progress_deinit(struct progress *progress);

/* Seconds since the beginning. */
double progress_seconds(const struct progress *progress);
