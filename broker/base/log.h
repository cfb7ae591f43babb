/*
 * The broker's log: lines on stderr, some of which are notes, which status
 * shows for as long as the broker runs.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

enum log_level {
	LOG_LEVEL_ERROR = 3,
	LOG_LEVEL_WARNING = 4,
	LOG_LEVEL_INFO = 6,
};

/* Sets the level above which lines are not written; notes are kept all the
 * same. At first it is LOG_LEVEL_INFO, so all lines are written. Only the
 * loop's thread may call it. */
void log_set_level(enum log_level level);

/* Writes a line to stderr, with the journal's <N> priority if stderr is the
 * journal. May be called on any thread. */
void log_line(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* A limit for lines that clients can cause in a tight loop. */
struct log_limit {
	uint64_t last_ms;    /* 0: no line was written yet */
	uint32_t n_left_out; /* lines left out since the last one */
};

/* Returns whether a line may be written now: at most one is allowed per second.
 * If it may, the caller writes it, and *ret_n_left_out is the number of lines
 * that were left out before. */
bool log_limit_allows(struct log_limit *limit, uint32_t *ret_n_left_out);

/*
 * Writes a line, and keeps it as a note for the operator. The oldest notes are
 * dropped when there is no space for a new one. Only the loop's thread may call
 * it.
 */
void log_note(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Returns all notes, one per line, without a newline at the end; "" without
 * notes. Valid until the next note. */
const char *log_notes(void);
/* Drops all notes, since a new broker starts without notes. */
void log_clear_notes(void);
