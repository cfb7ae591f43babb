/*
 * The purpose of a job of the engine.
 *
 * A job may end after its group was freed, so it carries the group's id and
 * looks it up when it is done.
 */
#pragma once
#include <stdint.h>

struct comms;
struct error;
struct group;

/* Streams of a communicator: gathers run beside reductions, each kind in
 * its order. */
enum work_stream {
	WORK_STREAM_GATHER = 0,
	WORK_STREAM_REDUCE = 1,
};

struct work {
	struct comms *comms;
	uint64_t group;    /* its id */
	uint64_t sequence; /* of the group's gather or reduction */
};

int work_new(const struct group *group, uint64_t sequence, struct work **ret,
	     struct error *err);

/* The number of the stream at the engine. */
uint32_t work_stream(const struct group *group, enum work_stream stream);

/* The group, if its communicator has not failed or ended; else NULL. */
struct group *work_find_group(const struct work *work);
