#include "broker/comm/comm_run.h"
#include "broker/comm/comm_late.h"
#include "broker/comm/comm_record.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/gather.h"
#include "broker/comm/gather_buffers.h"
#include "broker/comm/gather_look.h"
#include "broker/comm/group.h"
#include "broker/comm/reduce.h"
#include "broker/comm/run_board.h"
#include "broker/comm/run_record.h"
#include "broker/comm/verdict.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include "proto/name.h"
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

/* Set the ranks of the places that are known before any rank joins: if the
 * whole world is on this node, or shards are kept for each place. */
static void place_ranks(struct comm *comm, const struct comm_record *record)
{
	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		struct comm_rank *member = &comm->ranks[i];

		if (comm->n_ranks == comm->n_world)
			member->rank = i;
		else if (record->first_group)
			member->rank = record->places[i].rank;
		else
			continue;
		member->is_placed = true;
	}
}

/* Returns the work that the ranks may do without the broker (enum comm_direct),
 * which is only work that all of them can do. */
static uint32_t find_direct(const struct comm *comm)
{
	uint32_t direct = 0;

	if (comm->is_on_devices || comm->asked.executor != COMM_EXECUTOR_RANK ||
	    !comm->verdict || comm->n_ranks < comm->n_world)
		return 0;
	if (comm->n_inputs <= BOARD_MAX_AHEAD)
		direct |= COMM_DIRECT_REDUCE;
	/* The FSDP1 limiter is a queue in the broker. */
	if (comm->asked.limiter == COMM_LIMITER_WINDOW)
		direct |= COMM_DIRECT_GATHER;
	return direct;
}

/* Fill in the other fields of a run that has its id and record already. */
static void fill(struct comm *comm, const struct comm_join_request *request)
{
	struct catalog *catalog = &comm->comms->store->catalog;
	const struct comm_record *record = catalog_comm(catalog, comm->record);

	comm->state = COMM_JOINING;
	comm->n_world = request->n_ranks;
	comm->n_ranks = request->n_local;
	comm->is_on_devices = !device_uuid_is_host(&request->device);
	comm->is_by_ranks =
		comm->is_on_devices && request->executor == COMM_EXECUTOR_RANK;
	comm->n_shards = request->n_shards;
	comm->timeout_ms = request->timeout_ms;
	comm->n_inputs = request->n_inputs;
	comm->step = record->step;
	comm->access = record->access;
	comm->uid = record->uid;
	comm->begun_ms = now_ms();
	comm_record_name(comm->comms, comm->record, comm->name);
	snprintf(comm->key, sizeof(comm->key), "//comm/%llu",
		 (unsigned long long)comm->id);
	comm->asked = *request;
	comm->asked.name = comm->name;
	place_ranks(comm, record);
}

_Static_assert(sizeof(((struct comm *)0)->name) > NAME_MAX_SIZE, "names fit");

/* Charge a run separately, because a failed run outlives its record. */
static int charge(const struct comm *comm, struct error *err)
{
	struct accounts *accounts = &comm->comms->store->base->accounts;
	struct account *account = accounts_get(accounts, comm->uid);
	int r;

	if (!account)
		return error_nomem(err, "uid %u", comm->uid);
	r = account_charge(accounts, account, ACCOUNT_GROUPS, COMM_RUN_CHARGE,
			   err);
	return r < 0 ? error_wrap(err, r, "cannot run communicator '%s'",
				  comm->name)
		     : 0;
}

static void refund(struct comm *comm)
{
	accounts_refund(&comm->comms->store->base->accounts, comm->uid,
			ACCOUNT_GROUPS, COMM_RUN_CHARGE);
}

/* Make the struct, which is not charged yet and in no list. */
static int make(struct comms *comms, uint64_t id, uint32_t record,
		const struct comm_join_request *request, struct comm **ret,
		struct error *err)
{
	const struct limiter_options options = {
		.kind = request->limiter == COMM_LIMITER_FSDP1 ? LIMITER_FSDP1
							       : LIMITER_WINDOW,
		/* There cannot be more calls than this, and the FSDP1 limiter
		 * remembers at most as many events. */
		.limit = request->limit < GATHER_MAX ? request->limit
						     : GATHER_MAX,
		.limit_bytes = request->limit_bytes,
	};
	struct comm *comm = calloc(1, sizeof(*comm));
	int r;

	if (!comm)
		return error_nomem(err, "one more communicator");
	comm->comms = comms;
	comm->id = id;
	comm->record = record;
	r = limiter_new(&options, &comm->limiter, err);
	if (r < 0)
		goto free_comm;
	r = comm_late_init(comm, err);
	if (r < 0)
		goto free_limiter;
	fill(comm, request);
	*ret = comm;
	return 0;

free_limiter:
	limiter_free(comm->limiter);
free_comm:
	free(comm);
	return r;
}

static void unmake(struct comm *comm)
{
	comm_late_deinit(comm);
	limiter_free(comm->limiter);
	free(comm);
}

static void enlist(struct comm *comm)
{
	struct comms *comms = comm->comms;

	comm->next = comms->first;
	if (comm->next)
		comm->next->prev = comm;
	comms->first = comm;
	comms->n++;
	comm_late_update(comm);
}

int comm_new(struct comms *comms, uint32_t record,
	     const struct comm_join_request *request, struct comm **ret,
	     struct error *err)
{
	struct catalog *catalog = &comms->store->catalog;
	uint64_t id = catalog->header->next_comm_id;
	struct comm *comm;
	int r;

	r = make(comms, id, record, request, &comm, err);
	if (r < 0)
		return r;
	r = charge(comm, err);
	if (r < 0) {
		unmake(comm);
		return r;
	}
	catalog_set(catalog, catalog->header->next_comm_id, id + 1);
	verdict_open(comm);
	comm->direct = find_direct(comm);
	comm_record_use(comms, record, request);
	enlist(comm);
	*ret = comm;
	return 0;
}

int comm_revive(struct comms *comms, uint32_t run, struct comm **ret,
		struct error *err)
{
	const struct run_record *record =
		catalog_run(&comms->store->catalog, run);
	struct comm *comm;
	int r;

	r = make(comms, record->id, record->comm, &record->asked, &comm, err);
	if (r < 0)
		return r;
	r = accounts_charge_adopted(&comms->store->base->accounts, comm->uid,
				    ACCOUNT_GROUPS, COMM_RUN_CHARGE, err);
	if (r < 0) {
		unmake(comm);
		return r;
	}
	comm->run = run;
	comm->verdict = record->verdict;
	comm->direct = record->direct;
	enlist(comm);
	*ret = comm;
	return 0;
}

void comm_free(struct comm *comm)
{
	struct comms *comms = comm->comms;

	verdict_close(comm);
	gathers_end_totals(comm);
	comm_worker_forget(comm);
	gathers_free(comm);
	gather_buffers_free(comm);
	reductions_free(comm);
	comm_release_record(comm);
	run_board_close(comm);
	groups_free(comm);
	run_record_free(comm);
	wake_name(&comms->store->base->wake, comm->key);
	refund(comm);
	if (comm->prev)
		comm->prev->next = comm->next;
	else
		comms->first = comm->next;
	if (comm->next)
		comm->next->prev = comm->prev;
	comms->n--;
	unmake(comm);
}

void comms_deinit(struct comms *comms)
{
	while (comms->first) {
		run_record_leave(comms->first);
		comm_free(comms->first);
	}
}
