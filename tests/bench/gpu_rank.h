/*
 * Ranks on devices: ours, by libfsdp, and bare ones that call NCCL for the same
 * and nothing else. Both are parties (party.h) of two ranks.
 *
 * Where there are fewer devices than ranks they share one, which NCCL takes
 * only from ranks that seem to be on different nodes: they then speak over the
 * loopback interface.
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
	enum fsdp_home home; /* the worker's needs a device for each rank */
};

#define N_GPU_VARIANTS 5
extern const struct gpu_variant gpu_variants[N_GPU_VARIANTS];

/* What the ranks of both share, in memory that they inherit. */
struct gpu_mesh {
	const struct gpu *gpu;
	const char *socket;
	uint8_t id[NCCL_ID_SIZE]; /* of the bare ones' communicator */
	bool has_id;
	/* Of rank `number`, in the place of gpu_rank_iterate(); may be NULL. */
	void (*iterate)(void *rank, uint32_t number,
			const struct stage_order *order);
};

/* What a trainer does with one group, waited for. */
void gpu_rank_iterate(void *rank, const struct stage_order *order);

/* Lives of ranks; `data` is struct gpu_mesh. */
void gpu_rank_serve(struct stage *stage, uint32_t rank, void *data);
void gpu_bare_serve(struct stage *stage, uint32_t rank, void *data);

/* Seem to be on a node of its own, if it must; before NCCL is loaded. */
void gpu_rank_place(const struct gpu *gpu, uint32_t rank);
