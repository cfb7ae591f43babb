/*
 * Communicators on devices whose gathers and reductions fsdp-worker does.
 *
 * The worker opens one before it runs: all ranks have joined then, and their
 * joins wait. Over several nodes it compares what all brokers must agree about,
 * and is given all work in one order, that of the ranks' calls: NCCL wants the
 * same on all nodes. What it has opened it loses when it dies, so the
 * communicator fails then.
 */
#pragma once
#include "broker/comm.h"

/* Does the worker do it? */
bool comm_is_by_worker(const struct comm *comm);

/* All have joined: have it opened. It runs when it is, or fails. */
void comm_worker_open(struct comm *comm);

/* It has failed, or is over. Idempotent. */
void comm_worker_forget(struct comm *comm);

/* The worker has died. Other communicators do not notice. */
void comms_on_worker_death(struct broker *broker, const struct error *cause);

/* All ranks here have committed: so have those of the other nodes? Asks them
 * at the first call, when all work before has been submitted. */
bool comm_worker_has_agreed(struct comm *comm);

/* The place of a new gather or reduction in the order of calls. */
uint64_t comm_worker_take_turn(struct comm *comm);
/* May the group's work that has this place be submitted? Before the first one
 * of a group its plan is compared. */
bool comm_worker_is_turn(struct group *group, uint64_t turn);
/* It was. */
void comm_worker_end_turn(struct comm *comm);
/* Does what was begun have to be done, though no rank of ours needs it? */
bool comm_worker_is_bound(const struct comm *comm);
