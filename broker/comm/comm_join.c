/*
 * A parked join is run again from its beginning, and so is one that a client
 * sends again after it lost its connection. A rank that has joined without
 * getting its reply is therefore looked up first, whatever has happened to the
 * run in the meantime.
 */
#include "broker/comm/comm_join.h"
#include "broker/comm/comm.h"
#include "broker/comm/comm_record.h"
#include "broker/comm/comm_run.h"
#include "broker/comm/comm_worker.h"
#include "broker/comm/run_record.h"
#include "broker/session/session.h"
#include "broker/tensor/store.h"
#include "cuda/device.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* Find the rank as which this same request, or an earlier one that the client
 * has given up, has joined and waits for its reply. */
static struct comm_rank *find_waiting(const struct session *session,
				      const struct comm_join_request *request)
{
	struct comm_rank *member = session->first_rank;

	while (member &&
	       (member->is_answered || member->rank != request->rank ||
		strcmp(member->comm->name, request->name)))
		member = member->session_next;
	return member;
}

/* --- checks -------------------------------------------------------------- */

static int differ(const struct comm *comm, const char *what, uint64_t mine,
		  uint64_t theirs, struct error *err)
{
	return error_set(err, -EINVAL,
			 "others have joined communicator '%s' with %s of "
			 "%" PRIu64 ", not %" PRIu64 "; all must give the same",
			 comm->name, what, theirs, mine);
}

static int check_options(const struct comm *comm,
			 const struct comm_join_request *mine,
			 struct error *err)
{
	const struct comm_join_request *theirs = &comm->asked;
	const struct {
		const char *what;
		uint64_t mine, theirs;
	} options[] = {
		{"a number of ranks", mine->n_ranks, theirs->n_ranks},
		{"a number of shards", mine->n_shards, theirs->n_shards},
		{"a time-out in ms", (uint64_t)mine->timeout_ms,
		 (uint64_t)theirs->timeout_ms},
		{"a time to live in ms", mine->ttl_ms, theirs->ttl_ms},
		{"a limiter", mine->limiter, theirs->limiter},
		{"a limit of groups", mine->limit, theirs->limit},
		{"a limit of bytes", mine->limit_bytes, theirs->limit_bytes},
		{"a number of inputs", mine->n_inputs, theirs->n_inputs},
		{"a number of ranks on this node", mine->n_local,
		 theirs->n_local},
		{"a kind of memory", mine->memory, theirs->memory},
	};

	for (size_t i = 0; i < sizeof(options) / sizeof(*options); i++) {
		if (options[i].mine != options[i].theirs)
			return differ(comm, options[i].what, options[i].mine,
				      options[i].theirs, err);
	}
	return 0;
}

static const char *executor_word(uint32_t executor)
{
	return executor == COMM_EXECUTOR_WORKER ? "fsdp-worker" : "the ranks";
}

static int check_node(const struct comm *comm,
		      const struct comm_join_request *mine, struct error *err)
{
	bool is_host = device_uuid_is_host(&mine->device);

	if (is_host == comm->is_on_devices)
		return error_set(err, -EINVAL,
				 "others have joined communicator '%s' on %s, "
				 "not on %s; all must do the same",
				 comm->name,
				 is_host ? "devices" : "host memory",
				 is_host ? "host memory" : "devices");
	if (mine->executor != comm->asked.executor)
		return error_set(err, -EINVAL,
				 "others have joined communicator '%s' with "
				 "%s as executor, not %s; all must give the "
				 "same executor",
				 comm->name,
				 executor_word(comm->asked.executor),
				 executor_word(mine->executor));
	if (mine->has_nccl_id && comm->has_nccl_id &&
	    memcmp(mine->nccl_id, comm->nccl_id, MESSAGE_NCCL_ID_SIZE))
		return error_set(err, -EINVAL,
				 "others have joined communicator '%s' with "
				 "another NCCL id; all must give the same one, "
				 "or let rank 0 make it",
				 comm->name);
	return 0;
}

/* Check that the place of this rank is free, and that the session has no other
 * place. */
static int check_place(const struct comm *comm, const struct session *session,
		       uint32_t rank, struct error *err)
{
	const struct comm_rank *member;
	uint32_t place, other;

	if (!comm_find_place(comm, rank, &place))
		return error_set(err, -EINVAL,
				 "the %u ranks of communicator '%s' on this "
				 "node do not include rank %u",
				 comm->n_ranks, comm->name, rank);
	member = &comm->ranks[place];
	if (member->session)
		return error_set(err, -EEXIST,
				 "rank %u of communicator '%s' was joined by "
				 "process %u (%s) already",
				 rank, comm->name, member->pid,
				 member->command);
	if (!comm_find_rank(comm, session, &other))
		return 0;
	return error_set(err, -EEXIST,
			 "this connection is rank %u of communicator '%s' "
			 "already; join as rank %u on another connection",
			 comm->ranks[other].rank, comm->name, rank);
}

/* Check that the rank is on the same device as its kept shards, if they are on
 * a device. */
static int check_device(const struct comm *comm,
			const struct comm_join_request *request,
			struct error *err)
{
	const struct comm_record *record =
		catalog_comm(&comm->comms->store->catalog, comm->record);
	char mine[DEVICE_TEXT_SIZE], kept[DEVICE_TEXT_SIZE];
	const struct device_uuid *device;
	uint32_t place;

	if (!comm->is_on_devices || !record->first_group ||
	    !comm_find_place(comm, request->rank, &place))
		return 0;
	device = &record->places[place].device;
	if (!memcmp(device, &request->device, sizeof(*device)))
		return 0;
	device_format(&request->device, mine);
	device_format(device, kept);
	return error_set(err, -EINVAL,
			 "the shards of rank %u of communicator '%s' are on "
			 "%s, not on %s; join with that device, or remove the "
			 "communicator first (fsdpctl end)",
			 request->rank, comm->name, kept, mine);
}

static int check_number(const struct session *session, struct error *err)
{
	const struct comm_rank *member = session->first_rank;
	uint32_t n = 0;

	for (; member; member = member->session_next)
		n++;
	if (n < COMM_MAX_OF_SESSION)
		return 0;
	return error_set(err, -EMFILE,
			 "this connection is in %u communicators, which is the "
			 "limit; leave some",
			 n);
}

/* --- joining ------------------------------------------------------------- */

/* Record the places of ranks for shards that are made from now on. */
static void note_places(struct comm *comm)
{
	struct catalog *catalog = &comm->comms->store->catalog;
	struct comm_record *record = catalog_comm(catalog, comm->record);

	if (record->first_group)
		return;
	catalog_save(catalog, record->places, sizeof(record->places));
	for (uint32_t i = 0; i < comm->n_ranks; i++)
		record->places[i] = (struct comm_place){
			.rank = comm->ranks[i].rank,
			.device = comm->ranks[i].device,
		};
}

/* Start the run, since all ranks have joined. */
static void run(struct comm *comm)
{
	if ((comm->is_by_ranks || comm_worker_is_bound(comm)) &&
	    !comm->has_nccl_id) {
		comm_fail(comm, -EINVAL,
			  "no rank of communicator '%s' on this node gave an "
			  "NCCL id; make one where rank 0 is, and give it to "
			  "all nodes",
			  comm->name);
		return;
	}
	note_places(comm);
	run_record_make(comm);
	if (!comm_is_by_worker(comm))
		comm->state = COMM_RUNNING;
	/* If the worker does the work, it opens the communicator in the next
	 * round. */
	comm_wake(comm);
}

static void add_rank(struct comm *comm, struct session *session,
		     const struct comm_join_request *request)
{
	struct comm_rank *member;
	uint32_t place = 0;
	bool is_found = comm_find_place(comm, request->rank, &place);

	assert(is_found); /* the caller has checked */
	member = &comm->ranks[place];
	member->rank = request->rank;
	member->is_placed = true;
	member->device = request->device;
	comm_attach(comm, place, session);
	if (request->has_nccl_id) {
		comm->has_nccl_id = true;
		memcpy(comm->nccl_id, request->nccl_id, MESSAGE_NCCL_ID_SIZE);
	}
	comm->direct &= request->direct;
	comm->n_joined++;
	failpoint("comm.joined");
	if (comm->n_joined == comm->n_ranks)
		run(comm);
}

static int begin(struct comms *comms, struct session *session,
		 const struct comm_join_request *request, struct comm **ret,
		 struct error *err)
{
	uint32_t record = comm_record_find(comms, request->name);
	bool is_new = !record;
	int r;

	if (is_new)
		r = comm_record_make(comms, session, request, &record, err);
	else
		r = comm_record_check_access(comms, session, record, request,
					     err);
	if (r == 0 && !is_new)
		r = comm_record_check_mesh(comms, record, request, err);
	if (r < 0)
		return r;
	r = comm_new(comms, record, request, ret, err);
	if (r < 0 && is_new)
		comm_record_free(comms, record);
	return r;
}

/* Join `comm`, or make a new communicator if it is NULL. */
static int join(struct comms *comms, struct session *session,
		const struct comm_join_request *request, struct comm *comm,
		struct comm **ret, struct error *err)
{
	int r;

	r = check_number(session, err);
	if (r == 0 && comm) {
		r = check_options(comm, request, err);
		if (r == 0)
			r = check_node(comm, request, err);
		if (r == 0)
			r = check_place(comm, session, request->rank, err);
		if (r == 0)
			r = check_device(comm, request, err);
	} else if (r == 0) {
		r = begin(comms, session, request, &comm, err);
	}
	if (r < 0)
		return r;
	add_rank(comm, session, request);
	*ret = comm;
	return 0;
}

/* Wait for the end of a run that some ranks have left, since it cannot be
 * joined. */
static int wait_for_end(const struct comm *comm, bool is_late,
			struct error *err)
{
	char missing[RANK_TEXT];

	if (!is_late)
		return COMM_JOIN_WAIT;
	comm_name_missing(comm, comm_left(comm), missing);
	return error_set(err, -ETIMEDOUT,
			 "an earlier run of communicator '%s' has not ended: "
			 "%s has not left it",
			 comm->name, missing);
}

/* Look whether the run of a joined rank has begun or failed. Its time-out
 * counts from the start of the run, which may be later than the start of this
 * request, because the rank may first have waited for the end of an earlier
 * run. */
static int look(struct comm *comm, uint32_t rank, struct error *err)
{
	uint32_t place = 0;
	int r;

	(void)comm_find_place(comm, rank, &place); /* it has a place */
	if (comm->state == COMM_FAILED) {
		r = comm_refuse_failed(comm, err);
		comm_leave(comm, place);
		return r;
	}
	if (comm->state == COMM_JOINING)
		return COMM_JOIN_WAIT;
	comm->ranks[place].is_answered = true;
	run_record_note_rank(comm, place);
	return COMM_JOIN_DONE;
}

/* Join as a new rank. `known` is the communicator of that name, or NULL. */
static int enter(struct comms *comms, struct session *session,
		 const struct comm_join_request *request, struct comm *known,
		 bool is_late, struct comm **ret, struct error *err)
{
	int r;

	/* Check access first, so that a refused session learns nothing else. */
	if (known) {
		r = comm_record_check_access(comms, session, known->record,
					     request, err);
		if (r < 0)
			return r;
	}
	if (known && known->n_left) {
		*ret = known;
		return wait_for_end(known, is_late, err);
	}
	r = join(comms, session, request, known, ret, err);
	if (r < 0)
		return r;
	return look(*ret, request->rank, err);
}

int comm_join(struct comms *comms, struct session *session,
	      const struct comm_join_request *request, uint64_t number,
	      bool is_late, struct comm **ret, struct error *err)
{
	struct comm_rank *member = find_waiting(session, request);

	if (!member)
		return enter(comms, session, request,
			     comm_find_name(comms, request->name), is_late, ret,
			     err);
	if (number < member->reply_to)
		return error_set(err, -EEXIST,
				 "a later request of this connection joins "
				 "communicator '%s' as rank %u",
				 request->name, request->rank);
	member->reply_to = number;
	*ret = member->comm;
	return look(member->comm, request->rank, err);
}
