/*
 * A gate makes a stream of the worker wait until a rank's own stream has
 * written what the rank handed in.
 *
 * The rank says which value of its timelines (shm/timeline.h) that is. The
 * worker's stream does not wait for the timeline: nothing could let it go if
 * the rank's stream never ended. It waits for a counter of the worker, which
 * the rank's thread raises when it sees that the timeline has reached the
 * value, or that the communicator is over.
 */
#pragma once
#include "broker/worker/device_job.h"
#include "cuda/fence.h"
#include "shm/timeline.h"

struct device_gate {
	struct timelines timelines; /* of the rank; pages NULL: none was sent */
	struct fence_map map;       /* of the counter; device NULL: none */
	_Atomic uint64_t *counter;
	uint64_t n_waits, n_open; /* waits end in their order */
};

/* Call it before jobs that name the timelines. Consumes `fd`. -EEXIST: they are
 * known already. */
int device_gate_take(struct device_gate *gate, int fd, struct error *err);

/* Make the stream wait until the share's input is written. The share keeps the
 * number of the wait. */
int device_gate_wait(struct device_gate *gate, const struct device *device,
		     CUstream stream, struct device_share *share,
		     struct error *err);

/* End the share's wait if its input is written; false if it is not. */
bool device_gate_open(struct device_gate *gate,
		      const struct device_share *share);
/* End all waits, and those to come. */
void device_gate_end(struct device_gate *gate);
/* No stream may wait. The timelines stay open: the link's thread may set them
 * until the communicator is forgotten. */
void device_gate_close(struct device_gate *gate);
