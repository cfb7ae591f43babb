/*
 * A gate: by it a stream of the worker waits until a rank's own stream has
 * written what it handed in.
 *
 * The rank says which value of its timelines (shm/timeline.h) that is. The
 * worker's stream waits for a counter of the worker's instead, which the
 * thread of the rank raises when it sees that the timeline has come so far, or
 * that the communicator is over: a stream that waited for the timeline itself
 * could not be let go where the rank's stream never ends.
 */
#pragma once
#include "broker/worker/device_job.h"
#include "cuda/fence.h"
#include "shm/timeline.h"

struct device_gate {
	struct timelines timelines; /* the rank's; pages NULL: none came */
	struct fence_map map;       /* of the counter; device NULL: none */
	_Atomic uint64_t *counter;
	uint64_t n_waits, n_open; /* opened in the order of the waits */
};

/* Before jobs that name them. Consumes `fd`. -EEXIST: they are known. */
int device_gate_take(struct device_gate *gate, int fd, struct error *err);

/* Have the stream wait until the share's input is written; notes in the share
 * at which wait. */
int device_gate_wait(struct device_gate *gate, const struct device *device,
		     CUstream stream, struct device_share *share,
		     struct error *err);

/* Let go of it if its input is written; false: it is not. */
bool device_gate_open(struct device_gate *gate,
		      const struct device_share *share);
/* All waits, those to come as well. */
void device_gate_end(struct device_gate *gate);
/* No stream waits. */
void device_gate_close(struct device_gate *gate);
