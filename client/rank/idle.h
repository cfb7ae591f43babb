/*
 * Idle memory: what a rank keeps for its next gathers and reductions although
 * nothing uses it, namely buffers (gather_job.h) and inputs (inputs.h). A rank
 * must not wait for memory that only its own idle memory keeps.
 */
#pragma once
#include <stdint.h>

struct error;
struct fsdp_comm;
struct fsdp_tensor;
struct request;

/* Return all idle memory, because memory is short. Only the end of the run is
 * an error. */
int idle_give_back(struct fsdp_comm *comm, struct error *err);

/* Return the idle memory that the broker has recalled. Only the end of the run
 * is an error. */
int idle_heed(struct fsdp_comm *comm, struct error *err);

/* Ask for memory by an INPUT, a COMM_PLACE or a GATHER_BUFFER: one place of at
 * least `size` bytes on host memory. If there is none, return the idle memory,
 * and wait until `until_ns` of bell_now_ns(). Sets the time-out of `request`.
 * Returns -ETIMEDOUT if there is no memory. */
int idle_ask(struct fsdp_comm *comm, struct request *request, int64_t until_ns,
	     uint64_t size, struct fsdp_tensor **ret, struct error *err);
