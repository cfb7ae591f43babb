/*
 * An error: a negative errno, and one sentence that names the object, the cause
 * and the remedy.
 *
 * Every function that can fail returns 0 or a negative errno and takes a
 * `struct error *` as its last parameter. The caller owns it and may pass NULL.
 * It is written only on failure, and nothing is allocated, so running out of
 * memory needs no special case. Control characters become '?', and a sentence
 * that is too long ends with a whole character.
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

/* Sets `err`, unless it is NULL, to `code` and the sentence. Returns `code`. */
int error_set(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Sets -ENOMEM and "cannot allocate memory for <what>". */
int error_nomem(struct error *err, const char *what, ...)
	__attribute__((format(printf, 2, 3)));

/* Like error_set(), but adds ": strerror(-code)" to the sentence. */
int error_errno(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Puts information that only this caller has before the sentence. Returns
 * `code`. */
int error_wrap(struct error *err, int code, const char *format, ...)
	__attribute__((format(printf, 3, 4)));

/* Returns whether memory or descriptors were short, so that a later try may
 * succeed. */
bool error_is_short(int code);
