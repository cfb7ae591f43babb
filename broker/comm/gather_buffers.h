/*
 * Memory for whole parameters of a run whose ranks gather by themselves
 * (shm/gathers.h).
 *
 * The ranks choose on their board which buffer a gather uses. The broker makes
 * its memory when a rank asks for it, pins it for the run, and grants it to
 * each rank that asks. A buffer has versions. When there is a later version,
 * the memory of the earlier one is unpinned, and free as soon as no rank holds
 * it.
 *
 * When memory is short, all buffers are unpinned, and the ranks are asked to
 * release those that they do not use. From then on only the ranks' holds keep
 * them.
 *
 * The record of the run contains the buffers (run_record.h).
 */
#pragma once
#include <stdint.h>

struct comm;
struct comms;
struct error;
struct group;

/* Find or make the memory of this version of a buffer, large enough for the
 * group. Returns an enum pool_outcome, -EINVAL if there is no such buffer or it
 * is too small, or -ESTALE if there is a later version. */
int gather_buffer_make(struct group *group, uint32_t buffer, uint32_t version,
		       uint32_t *ret_slot, struct error *err);

/* Implements wake.on_short: asks the ranks of all runs, or of those that are
 * charged to `uid`, to release memory that they keep without using it (buffers
 * and inputs). Each run is asked at most once a second, so that a client that
 * requests too much does not slow other clients down. The ranks release the
 * memory with their next call, or within a second if they wait for each other.
 * This commits. */
void gather_buffers_recall(struct comms *comms, const uint32_t *uid);

/* Unpin the buffers at the end of the run. */
void gather_buffers_free(struct comm *comm);
