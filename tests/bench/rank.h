/*
 * One rank of a collective of ours: a process that does with libfsdp what a
 * trainer does.
 *
 * An iteration consists of all calls that a trainer needs for one collective:
 *
 *   all-gather   fsdp_unshard, fsdp_wait, fsdp_reshard
 *   reductions   fsdp_input, fsdp_reduce, fsdp_wait
 *
 * Ranks gather several groups in turn, so that each gather moves its bytes. An
 * all-reduce is a reduction over replicas of one shard each.
 */
#pragma once
#include "fsdp.h"
#include "stage.h"

struct variant {
	const char *name;
	enum collective collective;
	enum fsdp_dtype stored, whole, reduce;
	uint32_t n_params;
	enum fsdp_layout layout;
	bool has_mpi;  /* MPI can do the same */
	bool is_quick; /* also runs with --quick */
};

#define N_VARIANTS 11
extern const struct variant variants[N_VARIANTS];

/* Returns NULL if no variant has that name. */
const struct variant *variant_find(enum collective collective,
				   const char *name);

/* `size` is that of the whole parameters as a rank sees them. */

/* Returns the bytes read and written for one collective. */
uint64_t variant_moved(const struct variant *variant, uint32_t n_ranks,
		       uint64_t size);
/* Returns how many bytes of the broker's memory the collective needs. */
uint64_t variant_memory(const struct variant *variant, uint32_t n_ranks,
			uint64_t size);

struct rank_options {
	const char *socket;
	uint32_t n_ranks;
	enum fsdp_executor executor;
};

/* Run a rank. `data` is a struct rank_options. Orders contain the index of the
 * variant. */
void rank_serve(struct stage *stage, uint32_t rank, void *data);

/* Leave a communicator. Rank 0 also removes it, once the others have left. */
void rank_leave(struct fsdp_client *client, struct fsdp_comm *comm,
		uint32_t rank, const char *name);
