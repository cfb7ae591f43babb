/*
 * The error that travels with a negative errno: one sentence that names the
 * thing, the cause and the way out.
 *
 * Every function of ours that can fail returns 0 or -errno and takes a
 * `struct error *` as its last parameter. The caller owns it and may pass
 * NULL. It is written only on failure and never allocates, so running out of
 * memory needs no special case. Control characters become '?'.
 */
#pragma once
#include <stdbool.h>

#define ERROR_MSG_SIZE 512

struct error {
	int code; /* negative errno; 0 means "no error" */
	char msg[ERROR_MSG_SIZE];
};

/* clang-format off */
#define ERROR_NULL ((struct error){ 0 })
/* clang-format on */

/* Set `err` (if not NULL) to `code` and the sentence; return `code`. */
int error_set(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* -ENOMEM: "there is no memory for <what>". */
int error_nomem(struct error *err, const char *what, ...)
	__attribute__((format(printf, 2, 3)));

/* As error_set(), with ": strerror(-code)" after the sentence. */
int error_errno(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Put what only this caller knows in front of the sentence; return `code`. */
int error_wrap(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Memory or descriptors lacked: to try again later may go well. */
bool error_is_short(int code);
