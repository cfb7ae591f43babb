#include "broker/comm/run_record.h"
#include "broker/comm/group.h"
#include "broker/session/session.h"
#include <assert.h>

_Static_assert(TABLE_RUNS > 1 && BOARD_RANKS >= MESSAGE_MAX_RANKS,
	       "a run with a verdict has a record");

static struct catalog *catalog_of(const struct comm *comm)
{
	return &comm->comms->store->catalog;
}

void run_record_make(struct comm *comm)
{
	struct run_record *run;

	if (!comm->direct)
		return;
	comm->run = catalog_alloc(catalog_of(comm), SECTION_RUN);
	assert(comm->run); /* there are as many records as verdicts */
	run = run_record_of(comm);
	run->id = comm->id;
	run->comm = comm->record;
	run->verdict = comm->verdict;
	run->direct = comm->direct;
	run->asked = comm->asked;
	run->asked.name = NULL;
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		run_record_note_rank(comm, i);
}

void run_record_free(struct comm *comm)
{
	if (comm->run)
		catalog_release(catalog_of(comm), SECTION_RUN, comm->run);
	comm->run = 0;
}

bool run_record_is_sound(const struct run_record *run)
{
	return run->direct == COMM_DIRECT_ALL;
}

static void forget_memory(struct group *group)
{
	group->grads = group->partial = (struct rank_memory){.slots = {0}};
	group->is_fresh[0] = group->is_fresh[1] = false;
}

static bool may_go_on(const struct comm *comm)
{
	return comm->run && comm->state == COMM_RUNNING &&
	       run_record_is_sound(run_record_of(comm)) &&
	       (!comm->board.page || comm->is_board_kept) &&
	       comm->comms->store->base->fdstore.is_kept;
}

void run_record_put_off(struct comm *comm)
{
	for (struct group *group = comm->first_group; group;
	     group = group->next)
		forget_memory(group);
	comm->run = comm->record = comm->verdict = 0;
	comm->is_board_kept = false;
}

void run_record_leave(struct comm *comm)
{
	if (may_go_on(comm))
		run_record_put_off(comm);
}

void run_record_note_rank(const struct comm *comm, uint32_t rank)
{
	const struct comm_rank *member = &comm->ranks[rank];
	struct run_rank *to;

	if (!comm->run)
		return;
	to = &run_record_of(comm)->ranks[rank];
	catalog_save(catalog_of(comm), to, offsetof(struct run_rank, n_inputs));
	to->session = member->session ? member->session->holdings.index : 0;
	to->is_answered = member->is_answered;
	to->step = member->step;
	to->n_gathers = member->n_gathers;
}

void run_record_note_group(const struct group *group)
{
	const struct comm *comm = group->comm;
	struct group_run *to;

	if (!comm->run)
		return;
	to = &catalog_group(catalog_of(comm), group->record)->run;
	catalog_save(catalog_of(comm), to, sizeof(*to));
	*to = (struct group_run){
		.run = comm->id,
		.id = group->id,
		.answered = group->answered,
		.index = group->index,
		.grads = rank_memory_slot(comm, &group->grads, 0),
		.partial = rank_memory_slot(comm, &group->partial, 0),
	};
}
