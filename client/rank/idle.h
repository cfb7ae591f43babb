/*
 * Idle memory: what a rank keeps for its next gathers and reductions although
 * nothing uses it, namely buffers (gather_job.h) and inputs (inputs.h). A rank
 * must not wait for memory that only its own idle memory keeps.
 */
#pragma once
#include <stdbool.h>
#include <stdint.h>

struct error;
struct fsdp_comm;
struct fsdp_tensor;
struct inputs;
struct own_buffer;
struct own_input;
struct request;

/* --- buffers ------------------------------------------------------------- */

void idle_drop_buffer(struct own_buffer *buffer);

/* Tell whether the caller has pointers into the buffer. */
bool idle_is_in_use(const struct fsdp_comm *comm,
		    const struct own_buffer *buffer);

/* Unmap the buffers that ranks have given up, except those in use. */
void idle_drop_stale(struct fsdp_comm *comm);

/* Retire the buffers that the broker has recalled, and unmap those that ranks
 * have given up. Does nothing if the ranks do not gather by themselves. */
void idle_heed_buffers(struct fsdp_comm *comm);

/* --- inputs -------------------------------------------------------------- */

/* Unmap all inputs of other ranks. */
void idle_end_others(struct inputs *inputs, uint32_t n_ranks);

/* Return an unused input of at least `size` bytes, or NULL. */
struct own_input *idle_find_input(struct inputs *inputs, uint64_t size);

/* Return an input to the broker. No rank reads it any more. */
int idle_give_back_input(struct fsdp_comm *comm, struct own_input *input,
			 struct error *err);

/* Return the inputs that the broker has recalled. Does nothing if the ranks do
 * not reduce by themselves. Only the end of the run is an error. */
int idle_heed_inputs(struct fsdp_comm *comm, struct error *err);

/* --- both ---------------------------------------------------------------- */

/* Return all idle memory, because memory is short. Only the end of the run is
 * an error. */
int idle_give_back(struct fsdp_comm *comm, struct error *err);

/* Return the idle memory that the broker has recalled. Only the end of the run
 * is an error. */
int idle_heed(struct fsdp_comm *comm, struct error *err);

/* Ask for memory by an INPUT, a COMM_PLACE or a GATHER_BUFFER: one place of at
 * least `size` bytes on host memory. If the broker has no memory, this gives
 * the idle memory back, and waits until `until_ns` of bell_now_ns(). It sets
 * the time-out of `request`. Returns -ETIMEDOUT if there is no memory by then.
 */
int idle_ask(struct fsdp_comm *comm, struct request *request, int64_t until_ns,
	     uint64_t size, struct fsdp_tensor **ret, struct error *err);
