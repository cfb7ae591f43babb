/*
 * Communicators on devices whose gathers and reductions fsdp-worker runs.
 *
 * The worker opens the communicator before it runs: all ranks have joined then,
 * and their joins stay parked. With several nodes the worker compares the
 * values that all brokers must agree on, and gets all work in the order of the
 * ranks' calls, because NCCL requires the same order on all nodes. If the
 * worker dies, its communicators are lost, so they fail.
 */
#pragma once
#include "broker/comm/comm.h"

/* Returns whether the worker does the work of the communicator. */
bool comm_is_by_worker(const struct comm *comm);

/* Let the worker open a communicator that all ranks have joined. Afterwards it
 * runs, or has failed. */
void comm_worker_open(struct comm *comm);

/* Close a failed or ended communicator at the worker. Idempotent. */
void comm_worker_forget(struct comm *comm);

/* Fail the communicators that the worker had, because it has died. Other
 * communicators are not affected. */
void comms_on_worker_death(struct comms *comms, const struct error *cause);

/* Returns whether the ranks of the other nodes have committed, too, after all
 * ranks of this node have. The first call asks them, when all earlier work was
 * submitted. */
bool comm_worker_has_compared(struct comm *comm);

/* Take the next number in the sequence of calls, for a new gather
 * or reduction. */
uint64_t comm_worker_take_turn(struct comm *comm);
/* Returns whether the work with this number may be submitted. Before the first
 * work of a group, the nodes compare its plan. */
bool comm_worker_is_turn(struct group *group, uint64_t turn);
/* Note that the work whose turn it was has been submitted. */
void comm_worker_end_turn(struct comm *comm);
/* Returns whether begun work must be run even if no rank on this node needs it
 * any more. */
bool comm_worker_is_bound(const struct comm *comm);
