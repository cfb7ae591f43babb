/*
 * This process as a rank: its communicators and groups.
 *
 * The broker decides; these structs contain the state that a rank needs between
 * calls. A rank holds shards and gradients from the registration until it
 * leaves, the whole parameters from the wait to the reshard, and an input from
 * fsdp_input() to fsdp_reduce().
 *
 * Both shards are mapped all the time. A commit exchanges them at the broker,
 * and here when the rank has waited for the commit. In between, calls that need
 * to know which shards are committed are refused.
 */
#pragma once
#include "client/client.h"
#include "client/rank/barrier.h"
#include "client/rank/host_exchange.h"
#include "client/rank/lazy_mapping.h"
#include "proto/device_uuid.h"
#include "proto/error.h"
#include "proto/tensor.h"
#include "shm/board.h"
#include "shm/liveness.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* a parameter as this rank sees it; offsets and sizes are in bytes */
struct param {
	struct tensor_type type;  /* whole, as stored */
	struct tensor_type shard; /* this rank's part, without padding */
	uint32_t full_dtype;
	int64_t start; /* start of the shard in the shard dimension */
	uint64_t shard_size, chunk_size; /* without and with padding */
	uint64_t full_size;
	uint64_t shard_offset, full_offset, input_offset, grad_offset;
	bool is_frozen;
	bool is_carried; /* if frozen: both shards have the committed value */
};

struct rank_engine; /* engine.h */
struct engine_group;
struct host_group; /* host_group.h */
struct gatherer;   /* host_gather.h */
struct reducer;    /* host_reduce.h */
struct transfers;  /* transfers.h */

struct fsdp_group {
	struct fsdp_comm *comm;
	char name[FSDP_MAX_NAME + 1];
	uint64_t id;
	uint32_t side; /* index in `shards` of the committed ones */
	uint64_t step; /* last committed step; 0 before the first */
	struct fsdp_tensor *shards[2];
	struct fsdp_tensor *grads; /* NULL: all parameters are frozen */
	struct fsdp_tensor *input; /* NULL: there is no input */
	struct fsdp_tensor *full;  /* NULL: not whole, or not waited for */
	/* Granted memory that is not mapped yet, while its handle is NULL. */
	struct lazy_mapping shard_mappings[2], grads_mapping, input_mapping,
		full_mapping;
	uint64_t open; /* sequence of the open unshard; 0: none is open */
	/* number of one-way unshards, which this rank counts itself */
	uint64_t n_one_way;
	uint64_t refused; /* the last of these that was refused; 0: none was */
	struct error refusal;
	/* sequences of the last works that were waited for */
	uint64_t whole, reduced;
	/* the first reduction that changes gradients; 0: there was none */
	uint64_t first_full;
	/* end of the last parameter, in bytes */
	uint64_t full_size, input_size;
	size_t n_params;
	struct param *params; /* owned */
	/* owned; on devices, if the communicator has an engine */
	struct engine_group *engine;
	/* owned; on host memory, if ranks do more than gather in place */
	struct host_group *host;
	uint32_t index; /* on the board */
	/* The whole parameters, or NULL (borrowed); the gather that the group
	 * waits for, and the start of that wait (host_gather.h). */
	struct fsdp_tensor *gathered;
	uint64_t waits_for;
	int64_t since_ns;
	bool is_in_place; /* the committed shards are whole (unshard.h) */
	/* on devices: shards and gradients are in host memory */
	bool is_offloaded;
	struct fsdp_group *next;
};

struct fsdp_comm {
	struct fsdp_client *client;
	char name[FSDP_MAX_NAME + 1];
	struct rank_engine *engine; /* owned; NULL: fsdp-worker does the work */
	/* of this rank; the host if the communicator is on host memory */
	struct device_uuid device;
	uint64_t id;
	uint64_t step; /* last committed */
	uint32_t rank, n_shards, n_replicas;
	int32_t timeout_ms; /* for waits for other ranks */
	/* the broker takes ready fences; used without an engine */
	bool takes_fences;
	/* word of the run in the state table; 0: there is none */
	uint32_t verdict;
	struct board board; /* run_board.h; page NULL: not opened yet */
	struct barrier barrier;
	struct liveness liveness;
	struct exchanges exchanges;
	struct transfers *transfers; /* owned; NULL: there were no transfers */
	struct gatherer *gatherer;   /* owned; NULL: fsdp-worker gathers */
	struct reducer *reducer;     /* owned; NULL: fsdp-worker reduces */
	/* step whose commit was begun, not waited for; 0: none */
	uint64_t committing;
	bool is_commit_unsent; /* commit.h */
	/* without an engine: the point at which the shards are written */
	struct fence written;
	/* code < 0: the communicator has failed, for this reason */
	struct error failure;
	/* the input that was submitted, and is released before the next
	 * request; NULL: there is none */
	struct fsdp_tensor *spent;
	struct fsdp_group *groups; /* owned */
	/* next one of the connection: joined, or left while its device was
	 * busy */
	struct fsdp_comm *next;
};

/* Return the error of comm_check() for a communicator that is NULL or has
 * failed. */
int comm_refuse(const struct fsdp_comm *comm, struct error *err);

/* Check that this process may use the communicator, and that it has not
 * failed. */
static inline int comm_check(const struct fsdp_comm *comm, struct error *err)
{
	if (__builtin_expect(!comm || comm->failure.code < 0, 0))
		return comm_refuse(comm, err);
	return client_check(comm->client, err);
}

/* Tell whether the run is alive, by its verdict and without a request. The
 * communicator must have a verdict. */
static inline bool comm_is_alive(const struct fsdp_comm *comm)
{
	return table_is_alive(&comm->client->table, comm->verdict, comm->id);
}

/* Ask the broker why the run is over. Returns -ECONNABORTED with the reason. */
int comm_ask_why(struct fsdp_comm *comm, struct error *err);

/* Check the verdict, and ask the broker for the reason if the run is over. */
static inline int comm_check_run(struct fsdp_comm *comm, struct error *err)
{
	if (__builtin_expect(!comm_is_alive(comm), 0))
		return comm_ask_why(comm, err);
	return 0;
}

/* Tell the broker, and so the other ranks, why this rank cannot go on. */
void comm_give_up(struct fsdp_comm *comm, const struct error *why);

/* Fail the run for the reason in `err`, which all ranks are told. Returns the
 * error that the broker tells them, or this reason if the broker cannot be
 * told; it is -ECONNABORTED. */
int comm_fail_run(struct fsdp_comm *comm, struct error *err);

/* Check that the stream is valid for this communicator. Returns -EINVAL if
 * not. */
int comm_check_stream(const struct fsdp_comm *comm, void *stream,
		      struct error *err);

/* Call comm_check(), and check that no commit is under way. Returns -EBUSY if
 * one is. */
int comm_check_idle(const struct fsdp_comm *comm, struct error *err);

/* Send a request by client_call(). -ECONNABORTED ends the communicator, and is
 * remembered. */
int comm_call(struct fsdp_comm *comm, const struct request *request,
	      struct received *ret, struct error *err);

/* Do the same for a request whose reply is empty. */
int comm_command(struct fsdp_comm *comm, const struct request *request,
		 struct error *err);

/* Release the spent input. Call this just before a request for which the broker
 * collects released tensors. */
void comm_end_spent(struct fsdp_comm *comm);

/* Note that a reduction was waited for. */
void group_note_reduced(struct fsdp_group *group, uint64_t sequence);

/* Free the handles of the group, with their holds. */
void group_end_handles(struct fsdp_group *group);
/* Free the other memory of the group. Its handles have ended, or end with the
 * connection. */
void group_free(struct fsdp_group *group);

/* Copy the committed values of frozen parameters to the next shards. */
int group_carry_frozen(struct fsdp_group *group, struct error *err);
/* Exchange the shards, since all ranks have committed. */
void group_on_commit(struct fsdp_group *group, uint64_t step);

/* Take the whole parameters of a finished unshard from `received`. */
int group_take_full(struct fsdp_group *group, uint64_t sequence,
		    struct received *received, struct error *err);
/* Check that the unshard `sequence`, which is not whole yet, can be waited for.
 * Returns -EINVAL if not. */
int group_check_open(const struct fsdp_group *group, uint64_t sequence,
		     struct error *err);
