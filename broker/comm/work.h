/*
 * Work: the gather or reduction that a job of the engine is for.
 *
 * A job may end after its group was freed, so it carries the group's id and
 * looks the group up when it is done.
 */
#pragma once
#include <stdint.h>

struct call;
struct comms;
struct error;
struct group;

/* The streams of a communicator. Gathers run at the same time as reductions,
 * and each kind runs in its order. */
enum work_stream {
	WORK_STREAM_GATHER = 0,
	WORK_STREAM_REDUCE = 1,
};

struct work {
	struct comms *comms;
	uint64_t group;    /* its group's id */
	uint64_t sequence; /* number of the group's gather or reduction */
};

/* Make the work of a job. The job owns it until work_end(). Returns -ENOMEM if
 * there is no memory. */
int work_new(const struct group *group, uint64_t sequence, struct work **ret,
	     struct error *err);

/* Returns the number of the stream at the engine. */
uint32_t work_stream(const struct group *group, enum work_stream stream);

/* Free the work of a job that has ended. Returns the gather or reduction that
 * it was for, or NULL if the communicator has failed or ended. */
struct call *work_end(struct work *work, enum work_stream stream);

/* Fail the communicator, because the job, or the attempt to start it, has
 * failed. */
void work_fail(const struct group *group, enum work_stream stream,
	       const char *cause);
