#include "broker/base/log.h"
#include "broker/base/clock.h"
#include "proto/error.h"
#include "proto/message_part.h"
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define LIMIT_MS 1000

static char notes[MESSAGE_MAX_NOTE + 1];

/* Returns whether stderr is the journal. JOURNAL_STREAM has the device and
 * inode of its stream. */
static bool is_journal(void)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	return stream && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       fstat(STDERR_FILENO, &st) == 0 && st.st_dev == device &&
	       st.st_ino == inode;
}

/* It is atomic because all threads that log read it. */
static _Atomic(enum log_level) threshold = LOG_LEVEL_INFO;

void log_set_level(enum log_level level)
{
	threshold = level;
}

static void write_line(enum log_level level, const char *text)
{
	if (level > threshold)
		return;
	if (is_journal())
		fprintf(stderr, "<%d>%s\n", (int)level, text);
	else
		fprintf(stderr, "fsdpd: %s\n", text);
}

void log_line(enum log_level level, const char *format, ...)
{
	char text[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	write_line(level, text);
}

/* Drops the oldest note, which may be the only one. */
static void drop_oldest(void)
{
	const char *end = strchr(notes, '\n');

	if (end)
		memmove(notes, end + 1, strlen(end));
	else
		notes[0] = '\0';
}

bool log_limit_allows(struct log_limit *limit, uint32_t *ret_n_left_out)
{
	uint64_t now = now_ms();

	if (limit->last_ms && now - limit->last_ms < LIMIT_MS) {
		limit->n_left_out++;
		return false;
	}
	*ret_n_left_out = limit->n_left_out;
	*limit = (struct log_limit){.last_ms = now};
	return true;
}

void log_note(enum log_level level, const char *format, ...)
{
	char text[ERROR_MSG_SIZE + 64];
	size_t used;
	va_list args;

	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	write_line(level, text);
	while ((used = strlen(notes)) &&
	       used + 1 + strlen(text) >= sizeof(notes))
		drop_oldest();
	snprintf(notes + used, sizeof(notes) - used, "%s%s", used ? "\n" : "",
		 text);
}

const char *log_notes(void)
{
	return notes;
}

void log_clear_notes(void)
{
	notes[0] = '\0';
}
