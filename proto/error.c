/*
 * Sentences for errors, formatted into the caller's fixed buffer.
 *
 * Each sentence is made in a buffer of its own first, so that the arguments
 * may point into the error that is being replaced.
 */
#include "proto/error.h"

#include <assert.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

/* What is quoted may come from anywhere; a sentence is one line all the same,
 * and moves no cursor. */
static void store(struct error *err, int code, const char *msg)
{
	size_t i;

	err->code = code;
	for (i = 0; msg[i]; i++) {
		bool is_control = (unsigned char)msg[i] < ' ' || msg[i] == 0x7f;

		err->msg[i] = is_control ? '?' : msg[i];
	}
	err->msg[i] = '\0';
}

/* Put ": <tail>" behind the sentence, as much as fits. */
static void append(char *msg, const char *tail)
{
	const char *const parts[] = {": ", tail};
	size_t size = strlen(msg);

	for (size_t i = 0; i < 2; i++) {
		size_t left = ERROR_MSG_SIZE - 1 - size;
		size_t n = strnlen(parts[i], left);

		memcpy(msg + size, parts[i], n);
		size += n;
	}
	msg[size] = 0;
}

int error_set(struct error *err, int code, const char *format, ...)
{
	char msg[ERROR_MSG_SIZE];
	va_list args;

	assert(code < 0);
	if (!err)
		return code;
	va_start(args, format);
	(void)vsnprintf(msg, sizeof(msg), format, args);
	va_end(args);
	store(err, code, msg);
	return code;
}

int error_errno(struct error *err, int code, const char *format, ...)
{
	char msg[ERROR_MSG_SIZE], number[32];
	const char *reason;
	va_list args;

	assert(code < 0);
	if (!err)
		return code;
	va_start(args, format);
	(void)vsnprintf(msg, sizeof(msg), format, args);
	va_end(args);
	/* Unlike strerror() it needs no buffer and no locale. */
	reason = strerrordesc_np(-code);
	if (!reason) {
		(void)snprintf(number, sizeof(number), "error %d", code);
		reason = number;
	}
	append(msg, reason);
	store(err, code, msg);
	return code;
}

int error_wrap(struct error *err, int code, const char *format, ...)
{
	char msg[ERROR_MSG_SIZE];
	va_list args;

	assert(code < 0);
	if (!err)
		return code;
	va_start(args, format);
	(void)vsnprintf(msg, sizeof(msg), format, args);
	va_end(args);
	if (err->msg[0])
		append(msg, err->msg);
	store(err, code, msg);
	return code;
}
