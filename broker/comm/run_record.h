/*
 * The part of a run that outlives the broker, so that its ranks do not notice a
 * restart.
 *
 * Ranks that do all work by themselves (enum comm_direct) need the broker only
 * for memory, registrations and commits. The next broker therefore continues
 * such a run if it knows the ranks' sessions, the memory that the run keeps,
 * and the ranks that have committed. These are in the run's record and in those
 * of its groups, and change in the transactions that change the run. The board
 * is in the fd store. All other fields of struct comm follow from these, or
 * belong to waits, which the ranks request again.
 *
 * The verdict (verdict.h) decides whether a run is continued, since ranks may
 * have seen it: it is stored before the record changes, and is not undone.
 *
 * run_adopt.h continues runs after a restart.
 */
#pragma once
#include "broker/comm/comm.h"
#include "broker/tensor/store.h"
#include <stdint.h>

struct group;

/* Make the record when all ranks have joined. There is no effect if they do no
 * work by themselves. */
void run_record_make(struct comm *comm);

/* Free the record when the run is over and keeps no memory any more.
 * Idempotent. */
void run_record_free(struct comm *comm);

/* Prepare for the end of the broker. If the next broker can continue the run,
 * the struct forgets the memory and files of the run, so that it can be
 * freed. */
void run_record_leave(struct comm *comm);

/* Forget the memory and files of the run, because it was not adopted. */
void run_record_put_off(struct comm *comm);

/* Returns whether a broker can continue the run. */
bool run_record_is_sound(const struct run_record *run);

/* Record the rank's session, the reply that it got and its commit, or the
 * group's memory and the ranks that have its location. There is no effect
 * without a record. */
void run_record_note_rank(const struct comm *comm, uint32_t rank);
void run_record_note_group(const struct group *group);

/* Returns the record, which must exist. */
static inline struct run_record *run_record_of(const struct comm *comm)
{
	return catalog_run(&comm->comms->store->catalog, comm->run);
}
