/*
 * One rank without a broker. The test replaces the parts of libfsdp that the
 * rank uses.
 */
#pragma once
#include "client/rank/comm.h"
#include <stdatomic.h>
#include <stdbool.h>

#define N_SLOTS   6
#define SLOT_SIZE 512
#define N_PARAMS  3
enum { SHARDS_0 = 1, SHARDS_1, GRADS, FULL, INPUT };

struct world {
	_Alignas(64) uint8_t memory[N_SLOTS][SLOT_SIZE];
	struct fsdp_tensor handles[N_SLOTS];
	int holds[N_SLOTS];
	bool is_writable[N_SLOTS];
	struct request asked;        /* the last request */
	struct request sent_one_way; /* the last one-way request */
	struct one_way one_way;
	int n_asked, n_commands, n_one_way;
	struct reply received; /* reply to the next request */
	/* code of the next reply; below 0 if it is a refusal */
	int code;
	int n_refusals; /* number of refusals; 0 for no limit */
	bool is_down;
};

extern struct world world;
extern _Atomic uint32_t guard_word; /* 0 in a forked child */
extern struct fsdp_client client;

/*
 * Rank 1 of 2. "weight" is 3 x 2 f32, divided into chunks of two rows, of which
 * this rank has one row and one of padding. "base" is frozen. "scale" is 0-d
 * and belongs to rank 0.
 */
extern const struct fsdp_param_spec specs[N_PARAMS];
extern struct group_entry entries[N_PARAMS];

/* Each test must call this function first. */
void world_open(void);

/* Returns a place in this slot, and adds a hold of the slot. */
struct tensor_place place_of(uint32_t slot, int64_t size);
struct reply group_reply(uint64_t step, uint32_t side);
struct fsdp_comm *join(uint64_t step);
struct fsdp_group *new_group(struct fsdp_comm *comm, uint64_t step,
			     uint32_t side);
struct fsdp_work unshard(struct fsdp_group *group);
/* Act as if the broker refused the one-way request. */
void refuse_one_way(const struct one_way *one_way);
/* Prepare a reply to a wait that contains one place. */
void answer_place(struct tensor_place *place);
void commit_step(struct fsdp_comm *comm, uint64_t step);
struct fsdp_shard shard_of(struct fsdp_group *group, size_t param);
