/*
 * Reads a timeline file that its client has filled with anything. The broker
 * must read the values that are in the file. After the client's death every
 * counter must have reached every value.
 *
 * The first 4 bytes are the number of a timeline, and the next 8 are a value.
 * The rest is a list of writes of 12 bytes each: 4 of a position in the file,
 * in words and modulo its size, and 8 of the word.
 */
#include "proto/error.h"
#include "shm/timeline.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void scribble(int fd, const uint8_t *data, size_t size)
{
	for (; size >= 12; data += 12, size -= 12) {
		uint32_t position;

		memcpy(&position, data, sizeof(position));
		if (pwrite(fd, data + 4, 8,
			   (off_t)(position * 8ull % TIMELINE_SIZE)) != 8)
			abort();
	}
}

static uint64_t word(int fd, uint32_t timeline)
{
	uint64_t value;

	if (pread(fd, &value, sizeof(value),
		  (off_t)(timeline % TIMELINES * TIMELINE_STRIDE)) !=
	    (ssize_t)sizeof(value))
		abort();
	return value;
}

static void look(const struct timelines *timelines, uint32_t timeline,
		 uint64_t value)
{
	uint64_t counter = timelines_load(timelines, timeline);

	if (timeline % TIMELINES == 0
		    ? counter != TIMELINE_POISON
		    : counter != word(timelines->fd, timeline))
		abort();
	(void)timeline_has_reached(counter, value);
}

static void check_poison(struct timelines *timelines)
{
	timelines_poison(timelines);
	for (uint32_t i = 0; i < TIMELINES; i++) {
		if (!timeline_has_reached(timelines_load(timelines, i),
					  INT64_MAX))
			abort();
	}
}

/* A broker that was restarted opens the file again. */
static void adopt(int fd)
{
	struct error err = ERROR_NULL;
	struct timelines again;
	int r = timelines_open(&again, dup(fd), true, &err);

	if (r < 0 && (r != err.code || !err.msg[0]))
		abort();
	if (r < 0)
		return;
	check_poison(&again);
	timelines_close(&again);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct error err = ERROR_NULL;
	struct timelines timelines;
	uint32_t timeline;
	uint64_t value;

	if (size < sizeof(timeline) + sizeof(value))
		return 0;
	memcpy(&timeline, data, sizeof(timeline));
	memcpy(&value, data + sizeof(timeline), sizeof(value));
	if (timelines_create(&timelines, &err) < 0)
		abort();
	scribble(timelines.fd, data + 12, size - 12);
	for (uint32_t i = 0; i < TIMELINES; i++)
		look(&timelines, timeline + i, value);
	adopt(timelines.fd);
	check_poison(&timelines);
	timelines_close(&timelines);
	return 0;
}
