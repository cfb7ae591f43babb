/*
 * Communicators on devices whose gathers and reductions fsdp-worker runs.
 *
 * The worker opens one before it runs: all ranks have joined then, and their
 * joins stay parked. Over several nodes the worker compares the values on which
 * all brokers must agree, and gets all work in one order, that of the ranks'
 * calls: NCCL requires the same order on all nodes. If the worker dies, its
 * communicators are lost, so they fail.
 */
#pragma once
#include "broker/comm/comm.h"

/* Does the worker run its work? */
bool comm_is_by_worker(const struct comm *comm);

/* All ranks have joined: have the worker open it. It then runs, or fails. */
void comm_worker_open(struct comm *comm);

/* It has failed or is over. Idempotent. */
void comm_worker_forget(struct comm *comm);

/* The worker has died. Communicators without it are unaffected. */
void comms_on_worker_death(struct comms *comms, const struct error *cause);

/* All ranks on this node have committed: have those of the other nodes? The
 * first call asks them, after all earlier work was submitted. */
bool comm_worker_has_compared(struct comm *comm);

/* Take the next number in the sequence of calls, for a new gather
 * or reduction. */
uint64_t comm_worker_take_turn(struct comm *comm);
/* May the work with this number be submitted? Before the first work of a group,
 * the nodes compare its plan. */
bool comm_worker_is_turn(struct group *group, uint64_t turn);
/* The work whose turn it was has been submitted. */
void comm_worker_end_turn(struct comm *comm);
/* Must begun work be run even if no rank on this node needs it any more? */
bool comm_worker_is_bound(const struct comm *comm);
