/*
 * This process as a rank: communicators and groups as the library sees them.
 *
 * The broker decides; here is what a rank must remember between calls. Shards
 * and gradients are held from registering to leaving, the whole parameters
 * from the wait to the reshard, an input from fsdp_input() to fsdp_reduce().
 *
 * Both shards are mapped all the time. A commit makes them change places at
 * the broker, and here when the rank has waited for it; what depends on which
 * is which is refused in between.
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
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* A parameter, for this rank. Offsets and sizes are bytes. */
struct param {
	struct tensor_type type;  /* whole, as stored */
	struct tensor_type shard; /* this rank's part, without padding */
	uint32_t full_dtype;
	int64_t start; /* of the shard, along the shard dimension */
	uint64_t shard_size, chunk_size; /* without padding, and with */
	uint64_t full_size;
	uint64_t shard_offset, full_offset, input_offset, grad_offset;
	bool is_frozen;
	bool is_carried; /* frozen: both shards have the committed values */
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
	uint32_t side; /* of `shards`: committed */
	uint64_t step; /* 0: nothing was */
	struct fsdp_tensor *shards[2];
	struct fsdp_tensor *grads; /* NULL: all is frozen */
	struct fsdp_tensor *input; /* NULL: none */
	struct fsdp_tensor *full;  /* NULL: not whole, or not waited for */
	/* Of these five what is there, but not mapped yet; its handle is NULL.
	 */
	struct lazy_mapping shard_mappings[2], grads_mapping, input_mapping,
		full_mapping;
	uint64_t open;     /* sequence of the unshard; 0: none */
	uint64_t n_posted; /* unshards; their sequences are ours */
	uint64_t refused;  /* the last of these that was; 0: none */
	struct error refusal;
	uint64_t whole, reduced; /* sequences: waited for last */
	uint64_t first_full; /* the first reduction that changes gradients; 0:
			      * there was none */
	uint64_t full_size, input_size; /* bytes that params reach to */
	size_t n_params;
	struct param *params;        /* owned */
	struct engine_group *engine; /* owned; on devices, if it has one */
	struct host_group *host; /* owned; on host memory, if ranks do more than
				  * gather in place */
	uint32_t index;          /* on the board */
	/* See host_gather.h: where it is whole, if it is; borrowed. For what it
	 * waits, and since when. */
	struct fsdp_tensor *gathered;
	uint64_t waits_for;
	int64_t since_ns;
	bool is_in_place;  /* see direct.h; the committed shards are whole */
	bool is_offloaded; /* on devices: shards and gradients are the host's */
	struct fsdp_group *next;
};

struct fsdp_comm {
	struct fsdp_client *client;
	char name[FSDP_MAX_NAME + 1];
	struct rank_engine *engine; /* owned; NULL: fsdp-worker does the work */
	struct device_uuid device;  /* of this rank; the host */
	uint64_t id;
	uint64_t step; /* last committed */
	uint32_t rank, n_shards, n_replicas;
	int32_t timeout_ms; /* of waits for other ranks */
	bool takes_orders;  /* the broker; without an engine */
	uint32_t verdict;   /* of the run, in the state table; 0: none */
	struct board board; /* run_board.h; page NULL: not asked for */
	struct barrier barrier;
	struct exchanges exchanges;
	struct transfers *transfers; /* owned; NULL: there were none */
	struct gatherer *gatherer;   /* owned; NULL: fsdp-worker gathers */
	struct reducer *reducer;     /* owned; NULL: fsdp-worker reduces */
	uint64_t committing;         /* begun, not waited for; 0: none */
	bool is_commit_unsent;       /* commit.h */
	struct tensor_order written; /* without an engine: the shards are */
	struct error failure;        /* code < 0: it has failed, and why */
	struct fsdp_tensor *spent; /* input that was handed in, to be let go of
				    * with the next request; NULL */
	struct fsdp_group *groups; /* owned */
	struct fsdp_comm *next;    /* of the connection: joined, or left while
				    * its device was busy */
};

/* None of a connection works on a device any more. -ETIMEDOUT. */
int comm_stop_all(struct fsdp_client *client, struct error *err);

/* Forget all of a connection; their handles end with it. */
void comm_free_all(struct fsdp_client *client);

/* May this process use it, and has it not failed? */
int comm_check(const struct fsdp_comm *comm, struct error *err);

/* By the verdict: without asking. It must have one. */
static inline bool comm_is_alive(const struct fsdp_comm *comm)
{
	return table_is_alive(&comm->client->table, comm->verdict, comm->id);
}

/* The same, and why not: -ECONNABORTED. */
int comm_check_run(struct fsdp_comm *comm, struct error *err);

/* Tell the broker, and so the other ranks, why this one cannot go on. */
void comm_give_up(struct fsdp_comm *comm, const struct error *why);

/* May it be given for this communicator? -EINVAL. */
int comm_check_stream(const struct fsdp_comm *comm, void *stream,
		      struct error *err);

/* comm_check(), and no commit is under way: -EBUSY. */
int comm_check_idle(const struct fsdp_comm *comm, struct error *err);

/* client_call(); -ECONNABORTED is the communicator's end, and remembered. */
int comm_call(struct fsdp_comm *comm, const struct request *request,
	      struct answer *ret, struct error *err);

/* Just before a request at which the broker looks what was released. */
void comm_end_spent(struct fsdp_comm *comm);

/* A reduction was waited for. */
void group_note_reduced(struct fsdp_group *group, uint64_t sequence);

/* The holds of its handles go back, the handles with them. */
void group_end_handles(struct fsdp_group *group);
/* The rest; the handles are gone, or will go with the connection. */
void group_free(struct fsdp_group *group);

/* Frozen parameters: what is committed is what the next commit shall have. */
int group_carry_frozen(struct fsdp_group *group, struct error *err);
/* All ranks have committed: the shards change places. */
void group_on_commit(struct fsdp_group *group, uint64_t step);

/* The unshard of that number is done; `answer` has the whole parameters. */
int group_take_full(struct fsdp_group *group, uint64_t sequence,
		    struct answer *answer, struct error *err);
/* Can an unshard that is not whole be waited for? -EINVAL. */
int group_check_open(const struct fsdp_group *group, uint64_t sequence,
		     struct error *err);
/* The broker knows no unshard that is open here. Has it refused it? Then it is
 * not open, and why is told. */
bool group_is_refused(struct fsdp_group *group, struct error *ret);
/* Do we know it to be done without asking? */
bool group_is_whole(const struct fsdp_group *group, uint64_t sequence);
