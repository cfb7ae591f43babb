/*
 * The floor of collectives on devices. It calls NCCL as nccl-tests does: in
 * place, on plain memory that is not registered. Then it waits for the stream.
 */
#include "gpu_rank.h"
#include "proto/error.h"

#define WAIT_MS 60000

struct bare {
	struct gpu_mesh *mesh;
	uint32_t rank;
	CUstream stream;
	struct nccl_comm *comm;
	CUdeviceptr whole;
	size_t count; /* f32 of one rank */
};

static void open_comm(struct bare *bare)
{
	struct nccl_comm_options options = {
		.name = "bare",
		.device = gpu_enter(bare->rank),
		.id = bare->mesh->id,
		.n_shards = GPU_N_RANKS,
		.n_replicas = 1,
		.rank = bare->rank,
		.timeout_ms = WAIT_MS,
	};
	struct error err = ERROR_NULL;

	bare->stream = gpu_stream();
	if (bare->rank == 0) {
		gpu_check(nccl_id_make(bare->mesh->id, &err), &err);
		__atomic_store_n(&bare->mesh->has_id, true, __ATOMIC_RELEASE);
	}
	while (!__atomic_load_n(&bare->mesh->has_id, __ATOMIC_ACQUIRE))
		sleep_us(500);
	gpu_check(nccl_comm_open(&options, &bare->comm, &err), &err);
	gpu_check(nccl_comm_wait(bare->comm, &err), &err);
}

static void prepare(void *data, const struct stage_order *order)
{
	struct bare *bare = data;

	if (!bare->comm)
		open_comm(bare);
	bare->count = order->size / sizeof(float) / GPU_N_RANKS;
	gpu_must(cu.MemAlloc(&bare->whole, order->size),
		 "allocate on the device");
	gpu_must(cu.MemsetD8(bare->whole, 0, order->size),
		 "fill memory of the device");
}

static void iterate(void *data, const struct stage_order *order)
{
	struct bare *bare = data;
	CUdeviceptr mine =
		bare->whole + bare->rank * bare->count * sizeof(float);
	struct error err = ERROR_NULL;
	ncclResult_t result;

	if (order->collective == ALL_GATHER)
		result = nccl.AllGather((const void *)mine, (void *)bare->whole,
					bare->count, ncclFloat32,
					bare->comm->world, bare->stream);
	else
		result = nccl.ReduceScatter(
			(const void *)bare->whole, (void *)mine, bare->count,
			ncclFloat32, ncclAvg, bare->comm->world, bare->stream);
	gpu_check(
		nccl_comm_called(bare->comm, result, "a bare collective", &err),
		&err);
	gpu_must(cu.StreamSynchronize(bare->stream), "wait for NCCL");
}

static void release(void *data)
{
	struct bare *bare = data;

	gpu_must(cu.MemFree(bare->whole), "free memory of the device");
}

void gpu_bare_serve(struct stage *stage, uint32_t rank, void *data)
{
	static const struct stage_acts acts = {prepare, iterate, release};
	struct bare bare = {.mesh = data, .rank = rank};
	struct error err = ERROR_NULL;

	gpu_rank_place(bare.mesh->gpu, rank);
	stage_serve(stage, rank, &acts, &bare);
	gpu_check(nccl_comm_close(&bare.comm, &err), &err);
}
