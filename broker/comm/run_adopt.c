#include "broker/comm/run_adopt.h"
#include "broker/comm/comm_late.h"
#include "broker/comm/comm_record.h"
#include "broker/comm/comm_run.h"
#include "broker/comm/group.h"
#include "broker/comm/group_register.h"
#include "broker/comm/run_board.h"
#include "broker/comm/run_record.h"
#include "broker/comm/verdict.h"
#include "broker/session/session.h"
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <string.h>

/* Returns whether the run can be continued. It cannot if its ranks may have
 * seen a verdict that it is over. */
static bool goes_on(const struct comms *comms, const struct run_record *run)
{
	return run_record_is_sound(run) &&
	       table_is_alive(&comms->store->table, run->verdict, run->id);
}

/* --- what can fail ------------------------------------------------------- */

static int revive_groups(struct comm *comm, struct error *err)
{
	const struct catalog *catalog = &comm->comms->store->catalog;
	uint32_t record = catalog_comm(catalog, comm->record)->first_group;
	int r = 0;

	for (; record && r == 0;
	     record = catalog_group(catalog, record)->next) {
		if (catalog_group(catalog, record)->run.run == comm->id)
			r = group_revive(comm, record, err);
	}
	return r;
}

/* --- what cannot --------------------------------------------------------- */

static void pin(const struct comm *comm, uint32_t slot)
{
	if (slot)
		slot_pin(comm->comms->store, slot);
}

static void take_memory(struct group *group)
{
	const struct comm *comm = group->comm;
	const struct group_record *kept =
		catalog_group(&comm->comms->store->catalog, group->record);

	for (uint32_t i = 0; i < 2; i++)
		memcpy(group->shards[i].slots, kept->slots[i],
		       sizeof(kept->slots[i]));
	group->grads.slots[0] = kept->run.grads;
	group->partial.slots[0] = kept->run.partial;
	pin(comm, kept->run.grads);
	pin(comm, kept->run.partial);
}

static void pin_inputs(const struct comm *comm, const struct run_rank *rank)
{
	for (uint32_t i = 0; i < rank->n_inputs; i++)
		pin(comm, rank->inputs[i]);
}

static void pin_buffers(const struct comm *comm, const struct run_record *run)
{
	for (uint32_t i = 0; i < GATHERS_BUFFERS; i++) {
		if (run->buffers[i].is_pinned)
			pin(comm, run->buffers[i].slot);
	}
}

static void take_rank(struct comm *comm, uint32_t i,
		      const struct run_rank *from, struct session *session)
{
	struct comm_rank *member = &comm->ranks[i];

	comm->n_joined++;
	comm->n_left += !session;
	member->has_left = !session;
	member->is_answered = from->is_answered;
	member->step = from->step;
	member->n_gathers = from->n_gathers;
	if (from->step) {
		comm->committing = from->step;
		comm->committing_since_ms = now_ms();
	}
	if (session)
		comm_attach(comm, i, session);
}

static void take_ranks(struct comm *comm, const struct sessions *sessions)
{
	const struct run_record *run = run_record_of(comm);

	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		const struct run_rank *from = &run->ranks[i];

		take_rank(comm, i, from,
			  from->session ? session_at(sessions, from->session)
					: NULL);
		pin_inputs(comm, from);
	}
}

/* --- a run --------------------------------------------------------------- */

static int revive(struct comms *comms, uint32_t run, struct comm **ret,
		  struct error *err)
{
	int r = comm_revive(comms, run, ret, err);

	if (r == 0)
		r = revive_groups(*ret, err);
	if (r == 0)
		r = run_board_adopt(*ret, err);
	return r;
}

static void go_on(struct comm *comm, const struct sessions *sessions)
{
	for (struct group *group = comm->first_group; group;
	     group = group->next)
		take_memory(group);
	take_ranks(comm, sessions);
	pin_buffers(comm, run_record_of(comm));
	comm->state = COMM_RUNNING;
	comm_late_update(comm);
	comm_wake(comm);
}

/* End a run that cannot be continued. `comm` is NULL if it was not made. */
static void end(struct comms *comms, uint32_t run, struct comm *comm,
		const struct error *why)
{
	struct catalog *catalog = &comms->store->catalog;

	log_line(LOG_LEVEL_WARNING, "run %llu of a communicator ends: %s",
		 (unsigned long long)catalog_run(catalog, run)->id, why->msg);
	if (!comm) {
		catalog_release(catalog, SECTION_RUN, run);
		return;
	}
	/* The slots that the run has recorded are not pinned yet. */
	run_record_free(comm);
	comm_free(comm);
}

static int adopt(struct comms *comms, uint32_t run,
		 const struct sessions *sessions, struct error *err)
{
	struct catalog *catalog = &comms->store->catalog;
	struct error why = ERROR_NULL;
	struct comm *comm = NULL;
	int r;

	if (!goes_on(comms, catalog_run(catalog, run))) {
		catalog_release(catalog, SECTION_RUN, run);
		return 0;
	}
	r = revive(comms, run, &comm, &why);
	if (r == 0)
		go_on(comm, sessions);
	else if (error_is_short(r))
		*err = why;
	else
		end(comms, run, comm, &why);
	return error_is_short(r) ? r : 0;
}

static int adopt_runs(struct comms *comms, const struct sessions *sessions,
		      struct error *err)
{
	const struct catalog *catalog = &comms->store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_RUN);
	int r = 0;

	for (uint32_t i = 1; i <= n && r == 0; i++) {
		if (catalog_run(catalog, i)->id)
			r = adopt(comms, i, sessions, err);
	}
	if (r < 0)
		return r;
	verdicts_adopt(comms);
	run_boards_drop_strays(comms->store);
	return 0;
}

/* --- communicators ------------------------------------------------------- */

static bool is_running(const struct comms *comms, uint32_t record)
{
	const struct comm *comm = comms->first;

	while (comm && comm->record != record)
		comm = comm->next;
	return comm;
}

/* Keep a communicator that no rank has joined any more as if all ranks had just
 * left, or free it. */
static void keep_if_over(struct comms *comms, uint32_t record)
{
	const struct comm_record *comm =
		catalog_comm(&comms->store->catalog, record);

	if (comm->id && !comm->deadline_ms && !is_running(comms, record))
		comm_record_keep(comms, record);
}

int comms_adopt(struct comms *comms, const struct sessions *sessions,
		struct error *err)
{
	struct catalog *catalog = &comms->store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_COMM);
	int r = comm_records_adopt(comms, err);

	if (r == 0)
		r = adopt_runs(comms, sessions, err);
	if (r < 0)
		return r;
	for (uint32_t i = 1; i <= n; i++)
		keep_if_over(comms, i);
	catalog_commit(catalog);
	return 0;
}

void comms_put_off(struct comms *comms)
{
	while (comms->first) {
		run_record_put_off(comms->first);
		comm_free(comms->first);
	}
}
