/* Joining and leaving communicators. */
#include "client/device.h"
#include "client/one_way.h"
#include "client/rank/comm.h"
#include "client/rank/commit.h"
#include "client/rank/engine.h"
#include "client/rank/host_gather.h"
#include "client/rank/host_reduce.h"
#include "client/rank/plain_device.h"
#include "client/rank/run_board.h"
#include "client/rank/transfers.h"
#include "client/sized.h"
#include "client/spec.h"
#include "cuda/nccl_comm.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_TIMEOUT_MS 60000
#define DEFAULT_TTL_MS     600000

_Static_assert(FSDP_MAX_RANKS == MESSAGE_MAX_RANKS, "one limit of ranks");
_Static_assert((int)FSDP_LIMITER_WINDOW == (int)COMM_LIMITER_WINDOW &&
		       (int)FSDP_LIMITER_FSDP1 == (int)COMM_LIMITER_FSDP1,
	       "one numbering of limiters");
_Static_assert((int)FSDP_EXECUTOR_RANK == (int)COMM_EXECUTOR_RANK &&
		       (int)FSDP_EXECUTOR_WORKER == (int)COMM_EXECUTOR_WORKER,
	       "one numbering of executors");
_Static_assert((int)FSDP_MEMORY_DEFAULT == (int)COMM_MEMORY_DEFAULT &&
		       (int)FSDP_MEMORY_REGISTERED ==
			       (int)COMM_MEMORY_REGISTERED,
	       "one numbering of kinds of memory");

static struct comm_join_request join_request(const char *name, uint32_t n_ranks,
					     uint32_t rank,
					     const struct fsdp_comm_options *o)
{
	struct comm_join_request request = {
		.name = name,
		.access = spec_access(&o->access),
		.n_ranks = n_ranks,
		.rank = rank,
		.n_shards = o->n_shards ? o->n_shards : n_ranks,
		.timeout_ms =
			o->timeout_ms ? o->timeout_ms : DEFAULT_TIMEOUT_MS,
		.ttl_ms = o->ttl_ms ? o->ttl_ms : DEFAULT_TTL_MS,
		.limiter = o->limiter,
		.limit = o->limit,
		.limit_bytes = o->limit_bytes,
		.n_inputs = o->n_inputs ? o->n_inputs : 1,
		.device = device_uuid_of(o->device),
		.n_local = o->n_local,
		.has_nccl_id = o->nccl_id != NULL,
		.memory = o->memory,
		.executor = (uint32_t)o->executor,
		.direct = COMM_DIRECT_ALL,
	};

	if (o->nccl_id)
		memcpy(request.nccl_id, o->nccl_id, sizeof(request.nccl_id));
	return request;
}

/* Complete the request of a rank on a device. Rank 0 makes the NCCL id, unless
 * the caller has one. */
static int prepare(struct comm_join_request *request, struct error *err)
{
	int r;

	if (!request->n_local)
		request->n_local = request->n_ranks;
	if (device_uuid_is_host(&request->device))
		return 0;
	/* The worker needs no id of ours, since it makes one if all ranks are
	 * on this node. */
	if (request->executor == COMM_EXECUTOR_WORKER &&
	    (request->n_local == request->n_ranks || request->rank != 0 ||
	     request->has_nccl_id))
		return 0;
	r = device_check_usable(&request->device, err);
	if (r < 0 || request->has_nccl_id || request->rank != 0)
		return r;
	request->has_nccl_id = true;
	return nccl_id_make(request->nccl_id, err);
}

int fsdp_nccl_id(uint8_t ret[FSDP_NCCL_ID_SIZE])
{
	return nccl_id_make(ret, error_of_thread());
}

static void free_one(struct fsdp_comm *comm)
{
	while (comm->groups) {
		struct fsdp_group *group = comm->groups;

		comm->groups = group->next;
		group_free(group);
	}
	engine_free(comm->engine);
	host_gather_deinit(comm);
	host_reduce_deinit(comm);
	transfers_deinit(comm);
	run_board_drop(comm);
	free(comm);
}

/* Free all communicators. Their handles end with the connection. */
static void free_all(struct fsdp_client *client)
{
	while (client->comms) {
		struct fsdp_comm *comm = client->comms;

		client->comms = comm->next;
		free_one(comm);
	}
}

/* Wait for the streams that use our memory, and stop the engine. A failure is
 * only stored, because engine_quiesce() has either ended NCCL or stopped
 * waiting for its end. */
static int stop(struct fsdp_comm *comm, struct error *err)
{
	int r = comm->engine ? engine_quiesce(comm->engine, err)
			     : plain_quiesce(comm, err);

	if (r < 0)
		comm->failure = *err;
	return r;
}

static int stop_all(struct fsdp_client *client, struct error *err)
{
	int r = 0;

	for (struct fsdp_comm *comm = client->comms; comm && r == 0;
	     comm = comm->next)
		r = stop(comm, err);
	return r;
}

static const struct comm_hooks hooks = {
	.stop_all = stop_all,
	.free_all = free_all,
};

static void link_comm(struct fsdp_client *client, struct fsdp_comm *comm)
{
	pthread_mutex_lock(&client->comms_lock);
	comm->next = client->comms;
	client->comms = comm;
	client->comm_hooks = &hooks;
	pthread_mutex_unlock(&client->comms_lock);
}

static void unlink_comm(struct fsdp_client *client, struct fsdp_comm *comm)
{
	struct fsdp_comm **link = &client->comms;

	pthread_mutex_lock(&client->comms_lock);
	while (*link != comm)
		link = &(*link)->next;
	*link = comm->next;
	pthread_mutex_unlock(&client->comms_lock);
}

static void take_comm(struct fsdp_comm *comm, struct fsdp_client *client,
		      const struct comm_join_request *joined,
		      const struct comm_reply *reply)
{
	comm->client = client;
	comm->id = reply->comm;
	comm->step = reply->step;
	comm->rank = joined->rank;
	comm->timeout_ms = joined->timeout_ms;
	comm->takes_fences = reply->takes_fences;
	/* The verdict is an index into mapped memory. */
	comm->verdict = reply->verdict < TABLE_RUNS ? reply->verdict : 0;
	comm->n_shards = joined->n_shards;
	comm->n_replicas = joined->n_ranks / joined->n_shards;
	comm->device = joined->device;
	snprintf(comm->name, sizeof(comm->name), "%s", joined->name);
}

/* Open the engine. If that fails, the run fails, so that other ranks do not
 * wait for us until the time-out. */
static int open_engine(struct fsdp_comm *comm,
		       const struct comm_join_request *joined,
		       const struct comm_reply *reply, struct error *err)
{
	int r;

	if (device_uuid_is_host(&joined->device) ||
	    joined->executor == COMM_EXECUTOR_WORKER)
		return 0;
	r = engine_new(comm, joined, reply->nccl_id, &comm->engine, err);
	if (r == 0)
		return 0;
	comm_give_up(comm, err);
	return error_wrap(err, r, "cannot join communicator '%s'", comm->name);
}

/* Open the parts that move the ranks' bytes. */
static int open_movers(struct fsdp_comm *comm,
		       const struct comm_join_request *request,
		       const struct comm_reply *reply, struct error *err)
{
	int r = open_engine(comm, request, reply, err);

	if (r == 0)
		r = host_reduce_init(comm, reply->direct, request->n_inputs,
				     err);
	if (r == 0)
		r = host_gather_init(comm, request, reply->direct, err);
	return r;
}

static int join(struct fsdp_client *client, const struct request *request,
		struct fsdp_comm **ret, struct error *err)
{
	struct fsdp_comm *comm = calloc(1, sizeof(*comm));
	struct received received;
	int r;

	if (!comm)
		return error_nomem(err, "a communicator");
	r = client_call(client, request, &received, err);
	if (r < 0) {
		free(comm);
		return r;
	}
	take_comm(comm, client, &request->comm_join, &received.reply.comm);
	link_comm(client, comm);
	r = open_movers(comm, &request->comm_join, &received.reply.comm, err);
	received_deinit(&received);
	if (r < 0) {
		fsdp_comm_leave(comm);
		return r;
	}
	*ret = comm;
	return 0;
}

int fsdp_comm_join(struct fsdp_client *client, const char *name,
		   uint32_t n_ranks, uint32_t rank,
		   const struct fsdp_comm_options *options,
		   struct fsdp_comm **ret)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_COMM_JOIN};
	struct fsdp_comm_options desc;
	int r = client_check(client, err);

	if (r == 0)
		r = sized_take(&desc, options, SIZED(fsdp_comm_options), err);
	if (r < 0)
		return r;
	request.comm_join = join_request(name, n_ranks, rank, &desc);
	r = prepare(&request.comm_join, err);
	if (r < 0)
		return error_wrap(err, r, "cannot join communicator '%s'",
				  name);
	return join(client, &request, ret, err);
}

uint64_t fsdp_comm_step(const struct fsdp_comm *comm)
{
	return comm ? comm->step : 0;
}

/* End the handles. The caller makes sure that no device works with the memory,
 * which must not go to another user before that. */
static void end_handles(struct fsdp_comm *comm)
{
	fsdp_free(comm->spent);
	for (struct fsdp_group *group = comm->groups; group;
	     group = group->next)
		group_end_handles(group);
	host_gather_end_handles(comm);
	host_reduce_end_handles(comm);
}

/*
 * Tell the broker that this rank leaves. If the broker is down, there is no
 * need to tell it, and no reply to wait for, unless the ranks do all work by
 * themselves, so that their run continues with the next broker. If this rank
 * has given up waiting for that broker, its next request or the end of the
 * process tells it.
 */
static void tell_broker(struct fsdp_comm *comm)
{
	const struct request request = {.kind = MESSAGE_COMM_LEAVE,
					.comm_leave = {.comm = comm->id}};
	const struct one_way nobody = {.refused = NULL};
	struct fsdp_client *client = comm->client;
	bool may_go_on = comm->reducer && comm->gatherer && comm_is_alive(comm);

	if (!connection_is_down(&client->connection) ||
	    (may_go_on && comm->failure.code == 0))
		(void)client_command(client, &request, NULL);
	else if (may_go_on)
		(void)client_send_one_way(client, &request, &nobody, NULL);
}

int fsdp_comm_leave(struct fsdp_comm *comm)
{
	struct error *err = error_of_thread();
	struct fsdp_client *client;
	int r;

	if (!comm)
		return 0;
	client = comm->client;
	r = client_check(client, err);
	if (r < 0)
		return r;
	r = stop(comm, err);
	if (r == 0)
		end_handles(comm);
	run_board_leave(comm);
	tell_broker(comm);
	for (struct fsdp_group *group = comm->groups; group;
	     group = group->next)
		connection_forget_one_way(&client->connection, group);
	if (r < 0)
		return error_wrap(err, r,
				  "communicator '%s' was left, but keeps its "
				  "memory until the connection is closed",
				  comm->name);
	unlink_comm(client, comm);
	free_one(comm);
	return 0;
}

int fsdp_comm_remove(struct fsdp_client *client, const char *name)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_COMM_REMOVE,
				  .comm_remove = {.name = name}};
	int r = client_check(client, err);

	return r < 0 ? r : client_command(client, &request, err);
}
