/*
 * The part of a run that outlives the broker, so that nobody in it notices a
 * restart.
 *
 * Ranks that do all work alone (enum comm_direct) need the broker only for
 * memory, registrations and commits. The next broker therefore goes on with
 * such a run if it knows the ranks' sessions, the memory that the run keeps,
 * and the ranks that have committed. All that is in the run's record and in
 * those of its groups, and changes in the transactions that change the run. The
 * board is in the fd store. Everything else of struct comm follows from these,
 * or is what ranks wait for, which they request again.
 *
 * The verdict (verdict.h) decides whether a run goes on, since ranks may have
 * seen it: it is stored before the record changes, and is not undone.
 *
 * run_adopt.h: after a restart.
 */
#pragma once
#include "broker/comm/comm.h"
#include "broker/tensor/store.h"
#include <stdint.h>

struct group;

/* All ranks have joined. No effect if they do nothing alone. */
void run_record_make(struct comm *comm);

/* The run is over, and keeps no memory any more. Idempotent. */
void run_record_free(struct comm *comm);

/* The broker ends. If the next broker can go on with the run, the struct
 * forgets what the run keeps, so that it can be freed. */
void run_record_leave(struct comm *comm);

/* The run was not adopted, so the struct does not know what the run keeps. */
void run_record_put_off(struct comm *comm);

/* Can a broker go on with the run? */
bool run_record_is_sound(const struct run_record *run);

/* The rank's session, what it was told or what it has committed has changed, or
 * the group's memory, or the ranks that have got it. Without a record these
 * functions do nothing. */
void run_record_note_rank(const struct comm *comm, uint32_t rank);
void run_record_note_group(const struct group *group);

/* The caller knows that there is one. */
static inline struct run_record *run_record_of(const struct comm *comm)
{
	return catalog_run(&comm->comms->store->catalog, comm->run);
}
