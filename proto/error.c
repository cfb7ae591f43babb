/*
 * Formats the sentences of errors into the caller's fixed buffer.
 *
 * Each sentence is formatted in a separate buffer first, because the arguments
 * may point into the error that is being replaced.
 */
#include "proto/error.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

/* Returns the size of a text without the character of UTF-8 at its end, if the
 * rest of this character was cut off. */
static size_t whole_size(const char *text, size_t size)
{
	size_t start = size - 1, needed;
	uint8_t first;

	while (start > size - 4 && ((uint8_t)text[start] & 0xc0) == 0x80)
		start--;
	first = (uint8_t)text[start];
	needed = first >= 0xf0 ? 4 : first >= 0xe0 ? 3 : first >= 0xc0 ? 2 : 1;
	return start + needed > size ? start : size;
}

/* Replaces control characters, because a sentence may quote input, but must be
 * one line and must not control a terminal. */
static void store(struct error *err, int code, const char *msg)
{
	size_t i;

	err->code = code;
	for (i = 0; msg[i]; i++) {
		bool is_control = (unsigned char)msg[i] < ' ' || msg[i] == 0x7f;

		err->msg[i] = msg[i];
		if (is_control)
			err->msg[i] = '?';
	}
	if (i == ERROR_MSG_SIZE - 1) /* it may have been longer */
		i = whole_size(err->msg, i);
	err->msg[i] = '\0';
}

/* `tail`, which may be NULL, is added after a colon. */
__attribute__((format(printf, 3, 0))) static void
set(struct error *err, int code, const char *format, va_list args,
    const char *tail)
{
	char msg[ERROR_MSG_SIZE];
	size_t size;

	assert(code < 0);
	if (!err)
		return;
	(void)vsnprintf(msg, sizeof(msg), format, args);
	size = strlen(msg);
	if (tail)
		(void)snprintf(msg + size, sizeof(msg) - size, ": %s", tail);
	store(err, code, msg);
}

int error_set(struct error *err, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set(err, code, format, args, NULL);
	va_end(args);
	return code;
}

int error_nomem(struct error *err, const char *what, ...)
{
	char text[ERROR_MSG_SIZE];
	va_list args;

	va_start(args, what);
	(void)vsnprintf(text, sizeof(text), what, args);
	va_end(args);
	return error_set(err, -ENOMEM, "cannot allocate memory for %s", text);
}

int error_errno(struct error *err, int code, const char *format, ...)
{
	/* unlike strerror() it is thread-safe and not translated */
	const char *reason = strerrordesc_np(-code);
	char number[32];
	va_list args;

	if (!reason) {
		(void)snprintf(number, sizeof(number), "error %d", code);
		reason = number;
	}
	va_start(args, format);
	set(err, code, format, args, reason);
	va_end(args);
	return code;
}

int error_wrap(struct error *err, int code, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	set(err, code, format, args, err && err->msg[0] ? err->msg : NULL);
	va_end(args);
	return code;
}

bool error_is_short(int code)
{
	return code == -ENOMEM || code == -EMFILE || code == -ENFILE;
}
