/*
 * How communicators are opened at the worker, how values are compared, and the
 * sequence of work.
 */
#include "broker/comm/comm_worker.h"
#include "broker/comm/group.h"
#include "broker/engine/engine.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(JOB_NCCL_ID_SIZE == MESSAGE_NCCL_ID_SIZE, "one size of ids");

/* The communicator and value of a job that has no group. */
struct matter {
	struct comms *comms;
	uint64_t comm;
	uint64_t value; /* a step, or the id of a group */
};

bool comm_is_by_worker(const struct comm *comm)
{
	return comm->is_on_devices && !comm->is_by_ranks;
}

/* Returns whether the work has a fixed order: with several nodes, all workers
 * must run the same work in the same order. */
bool comm_worker_is_bound(const struct comm *comm)
{
	return comm_is_by_worker(comm) && comm->n_ranks < comm->n_world;
}

/* Free the matter. Returns the communicator, or NULL if it has failed or
 * ended. */
static struct comm *end_matter(struct matter *matter, uint64_t *ret_value)
{
	struct comm *comm = comm_find_id(matter->comms, matter->comm);

	*ret_value = matter->value;
	free(matter);
	return comm && comm->state != COMM_FAILED ? comm : NULL;
}

/* Make a matter. Returns NULL with `err` set if there is no memory. */
static struct matter *matter_new(const struct comm *comm, uint64_t value,
				 struct error *err)
{
	struct matter *matter = malloc(sizeof(*matter));

	if (matter)
		*matter = (struct matter){comm->comms, comm->id, value};
	else
		error_nomem(err, "a job");
	return matter;
}

static void fail(struct comm *comm, int code, const char *sentence)
{
	comm_fail(comm, code, "fsdp-worker cannot serve communicator '%s': %s",
		  comm->name, sentence);
}

/* --- comparing ----------------------------------------------------------- */

static void ask(struct comm *comm, struct job_compare *compare, uint64_t about,
		engine_done_fn *done)
{
	struct error err = ERROR_NULL;
	struct matter *matter = matter_new(comm, about, &err);

	compare->kind = JOB_COMPARE;
	compare->comm = comm->id;
	if (matter && engine_compare(comm->comms->engine, compare, done, matter,
				     &err) == 0)
		return;
	free(matter);
	fail(comm, -ECONNABORTED, err.msg);
}

static void ask_about_step(struct comm *comm, uint64_t step, const char *what,
			   engine_done_fn *done)
{
	struct job_compare compare = {.value = step};

	snprintf(compare.what, sizeof(compare.what), "%s", what);
	ask(comm, &compare, step, done);
}

static void on_step_compared(void *data, const struct job_done *done)
{
	struct matter *matter = data;
	struct comms *comms = matter->comms;
	uint64_t step;
	struct comm *comm = end_matter(matter, &step);

	if (comm && done->code < 0) {
		fail(comm, -ECONNABORTED, done->sentence);
	} else if (comm) {
		comm->compared = step;
		comm_wake(comm);
	}
	catalog_commit(&comms->store->catalog);
}

bool comm_worker_has_compared(struct comm *comm)
{
	if (!comm_worker_is_bound(comm) || comm->compared == comm->committing)
		return true;
	if (comm->comparing == comm->committing ||
	    comm->n_submitted < comm->n_begun)
		return false;
	comm->comparing = comm->committing;
	ask_about_step(comm, comm->committing, "the step to commit",
		       on_step_compared);
	return false;
}

/* --- opening ------------------------------------------------------------- */

static void run(struct comm *comm)
{
	assert(comm->state == COMM_JOINING && comm->is_at_worker);
	comm->state = COMM_RUNNING;
	comm_wake(comm);
}

static void on_begun(void *data, const struct job_done *done)
{
	struct matter *matter = data;
	struct comms *comms = matter->comms;
	uint64_t step;
	struct comm *comm = end_matter(matter, &step);

	if (comm && done->code < 0)
		fail(comm, done->code, done->sentence);
	else if (comm)
		run(comm);
	catalog_commit(&comms->store->catalog);
}

static void on_opened(void *data, const struct job_done *done)
{
	struct matter *matter = data;
	struct comms *comms = matter->comms;
	uint64_t step;
	struct comm *comm = end_matter(matter, &step);

	if (comm && done->code < 0)
		/* The message names the value that differs. */
		comm_fail(comm, done->code, "fsdp-worker: %s", done->sentence);
	else if (comm && comm_worker_is_bound(comm))
		ask_about_step(comm, step, "the last committed step", on_begun);
	else if (comm)
		run(comm);
	catalog_commit(&comms->store->catalog);
}

static void describe(const struct comm *comm, struct job_comm *ret)
{
	*ret = (struct job_comm){
		.kind = JOB_COMM,
		.n_world = comm->n_world,
		.comm = comm->id,
		.n_shards = comm->n_shards,
		.n_local = comm->n_ranks,
		.timeout_ms = (uint32_t)comm->timeout_ms,
		.has_nccl_id = comm->has_nccl_id,
	};
	memcpy(ret->nccl_id, comm->nccl_id, sizeof(ret->nccl_id));
	snprintf(ret->name, sizeof(ret->name), "%.*s", JOB_MAX_TEXT - 1,
		 comm->name);
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		ret->members[i] = (struct job_member){
			.rank = comm->ranks[i].rank,
			.device = comm->ranks[i].device,
		};
}

void comm_worker_open(struct comm *comm)
{
	struct error err = ERROR_NULL;
	struct matter *matter = matter_new(comm, comm->step, &err);
	struct job_comm message;

	describe(comm, &message);
	if (!matter || engine_open_comm(comm->comms->engine, &message,
					on_opened, matter, &err) < 0) {
		free(matter);
		fail(comm, err.code, err.msg);
		return;
	}
	comm->is_at_worker = true;
}

void comm_worker_forget(struct comm *comm)
{
	if (comm->is_at_worker)
		engine_forget_comm(comm->comms->engine, comm->id);
	comm->is_at_worker = false;
}

void comms_on_worker_death(struct comms *comms, const struct error *cause)
{
	struct comm *comm = comms->first;

	for (; comm; comm = comm->next) {
		if (comm->is_at_worker &&
		    engine_has_lost(comms->engine, comm->id))
			fail(comm, -ECONNABORTED, cause->msg);
	}
	catalog_commit(&comms->store->catalog);
}

/* --- sequence ------------------------------------------------------------ */

uint64_t comm_worker_take_turn(struct comm *comm)
{
	return ++comm->n_begun;
}

static void on_plan_compared(void *data, const struct job_done *done)
{
	struct matter *matter = data;
	struct comms *comms = matter->comms;
	struct group *group;
	uint64_t id;
	struct comm *comm = end_matter(matter, &id);

	group = comm ? group_find_id(comms, id) : NULL;
	if (comm && done->code < 0) {
		fail(comm, -ECONNABORTED, done->sentence);
	} else if (group) {
		group->is_compared = true;
		comm_wake(comm);
	}
	catalog_commit(&comms->store->catalog);
}

static void ask_about_plan(struct group *group)
{
	struct job_compare compare = {.value = group->plan.hash};

	snprintf(compare.what, sizeof(compare.what), "the plan of group '%.*s'",
		 (int)sizeof(compare.what) / 2, group->name);
	group->is_comparing = true;
	ask(group->comm, &compare, group->id, on_plan_compared);
}

bool comm_worker_is_turn(struct group *group, uint64_t turn)
{
	struct comm *comm = group->comm;

	if (!comm_worker_is_bound(comm))
		return true;
	if (turn != comm->n_submitted + 1)
		return false;
	if (!group->is_compared && !group->is_comparing)
		ask_about_plan(group);
	return group->is_compared;
}

void comm_worker_end_turn(struct comm *comm)
{
	/* A call takes its turn before it ends. */
	assert(comm->n_submitted < comm->n_begun);
	comm->n_submitted++;
	/* The call with the next number may be in the other list. */
	if (comm_worker_is_bound(comm))
		comm_wake(comm);
}
