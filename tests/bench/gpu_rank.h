/*
 * Ranks on devices: ours, by libfsdp, and bare ones, which only call NCCL for
 * the same work. Both are parties (party.h) of two ranks. If there are fewer
 * devices than ranks, the ranks share one. NCCL accepts that only from ranks
 * that seem to be on different nodes, so they then use the loopback interface.
 */
#pragma once
#include "cuda/nccl_comm.h"
#include "gpu.h"
#include "party.h"

#define GPU_N_RANKS 2

struct gpu_variant {
	const char *name;
	enum collective collective;
	uint32_t n_params;
	enum fsdp_layout layout;
	enum fsdp_executor
		executor; /* the worker needs a device for each rank */
};

#define N_GPU_VARIANTS 5
extern const struct gpu_variant gpu_variants[N_GPU_VARIANTS];

/* The ranks of both parties share this memory, which they inherit. */
struct gpu_mesh {
	const struct gpu *gpu;
	const char *socket;
	uint8_t id[NCCL_ID_SIZE]; /* id of the bare ranks' communicator */
	bool has_id;
	/* Function of rank `number`, called instead of gpu_rank_iterate(); may
	 * be NULL. */
	void (*iterate)(void *rank, uint32_t number,
			const struct stage_order *order);
};

/* Do with one group what a trainer does, and wait for the end. */
void gpu_rank_iterate(void *rank, const struct stage_order *order);

/* Run a rank. `data` is struct gpu_mesh. */
void gpu_rank_serve(struct stage *stage, uint32_t rank, void *data);
void gpu_bare_serve(struct stage *stage, uint32_t rank, void *data);

/* Make the rank seem to be on a node of its own, if needed. Call it before NCCL
 * is loaded. */
void gpu_rank_place(const struct gpu *gpu, uint32_t rank);
