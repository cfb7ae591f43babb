/*
 * The broker's log: lines on stderr, and the notes among them, which status
 * shows for as long as the broker runs.
 */
#pragma once

enum log_level {
	LOG_LEVEL_ERROR = 3,
	LOG_LEVEL_WARNING = 4,
	LOG_LEVEL_INFO = 6,
};

/* Write a line to stderr, with the journal's <N> priority if stderr is the
 * journal. Any thread may call it. */
void log_line(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/*
 * Write a line, and keep it as a note: an operator should know it. The oldest
 * notes are dropped when there is no room for a new one. Notes belong to the
 * loop's thread.
 */
void log_note(enum log_level level, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* All notes, a line each, without a newline at the end; "" without notes. Valid
 * until the next note. */
const char *log_notes(void);
/* A new broker begins without notes. */
void log_clear_notes(void);
