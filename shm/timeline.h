/*
 * Timeline files: the counters by which streams of different processes wait for
 * each other (cuda/fence.h), in host memory.
 *
 * There is one memfd for each session that has streams. The broker makes and
 * maps it, reads the counters (to see whether a release is complete, or whether
 * a dead producer had finished) and poisons them when the process has died. The
 * client of the session maps it writable. Other clients may only wait, and map
 * it read-only.
 *
 * LAYOUT: 64 KiB, which is one page of any machine, because devices pin whole
 * pages. Counter t (1 to TIMELINES - 1; 0 means that there is no timeline) is
 * the 64-bit word at byte 64 * t. Word 0 is the header: magic "FSDPTIM2".
 */
#pragma once
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

#define TIMELINES       64
#define TIMELINE_STRIDE 64
#define TIMELINE_SIZE   65536
#define TIMELINE_POISON INT64_MAX

struct timelines {
	void *pages; /* NULL when closed */
	int fd;      /* owned; -1 when closed */
	bool is_writable;
};

#define TIMELINES_NULL ((struct timelines){.fd = -1})

/* Makes a new file, which is sealed against changes of its size (broker). */
int timelines_create(struct timelines *ret, struct error *err);

/* Maps an existing file after checks of seals, size and header. The mapping is
 * MADV_DONTFORK. Consumes `fd`, also on failure. */
int timelines_open(struct timelines *ret, int fd, bool is_writable,
		   struct error *err);
void timelines_close(struct timelines *timelines);

/* Returns the value of the counter; `timeline` is taken modulo TIMELINES.
 * Timeline 0 has always reached any value. */
uint64_t timelines_load(const struct timelines *timelines, uint32_t timeline);

/* Returns whether the counter has reached `value`. A poisoned counter has
 * reached any value. */
static inline bool timeline_has_reached(uint64_t counter, uint64_t value)
{
	return (int64_t)(counter - value) >= 0;
}

/* Wakes all waiters of a process that has died, by poisoning all its counters.
 * They stay poisoned. */
void timelines_poison(struct timelines *timelines);
