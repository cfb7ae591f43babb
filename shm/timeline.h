/*
 * Timeline files: the counters by which streams of different processes wait for
 * each other (cuda/fence.h), as host memory.
 *
 * There is one memfd for each session that has streams. The broker makes and
 * maps it, reads the counters (is a release complete? did a dead producer
 * finish?) and poisons them when the process has died. Its own client maps it
 * writable; other clients, which may only wait, map it read-only.
 *
 * LAYOUT: 64 KiB, one page of any machine, because devices pin whole pages;
 * counter t (1 to TIMELINES - 1; 0 means none) is the 64-bit word at byte 64 *
 * t. Word 0 is the header: magic "FSDPTIM2".
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
	void *pages; /* NULL: closed */
	int fd;      /* owned; -1 */
	bool is_writable;
};

#define TIMELINES_NULL ((struct timelines){.fd = -1})

/* A new file (broker); sealed against changes of its size. */
int timelines_create(struct timelines *ret, struct error *err);

/* Map an existing one: checks seals, size and header; the mapping is
 * MADV_DONTFORK. Consumes `fd`, also on failure. */
int timelines_open(struct timelines *ret, int fd, bool is_writable,
		   struct error *err);
void timelines_close(struct timelines *timelines);

/* The value of the counter; `timeline` is taken modulo TIMELINES. Timeline 0
 * has reached every value. */
uint64_t timelines_load(const struct timelines *timelines, uint32_t timeline);

/* Has it reached `value`? (A poisoned one has reached every value.) */
static inline bool timeline_has_reached(uint64_t counter, uint64_t value)
{
	return (int64_t)(counter - value) >= 0;
}

/* The process is dead: wake all waiters. Permanent, for all counters. */
void timelines_poison(struct timelines *timelines);
