/*
 * Ranks on devices whose executor is fsdp-worker, seen from the broker. A world
 * consists of ranks, each with a device and a chunk of its memory. A node has a
 * worker for some of the ranks. The test itself has mapped the memory of all
 * ranks, to write and read it.
 */
#pragma once
#include "cuda/nccl_comm.h"
#include "cuda/vmm.h"
#include "tests/lib/device.h"
#include "tests/lib/gpu.h"
#include "tests/unit/broker/worker/worker_process.h"
#include "tests/unit/collective/host/host_fixture.h"
#include <time.h>

#define MAX_WORLD  4
#define CHUNK_SIZE (UINT64_C(2) << 20)
/* Offsets in the chunk of each rank. */
#define AREA       (UINT64_C(64) << 10)
#define AT_SHARDS  0
#define AT_FULL    AREA
#define AT_INPUT   (2 * AREA)
#define AT_GRADS   (3 * AREA)
#define AT_PARTIAL (4 * AREA)

#define COMM UINT64_C(1)
#define PLAN UINT64_C(1)
/* limit of waits that do not end; recv() waits for less */
#define TIMEOUT_MS 40000

static struct {
	struct plan plan;
	uint32_t n;
	int chunk_fds[MAX_WORLD];
	struct vmm_mapping chunks[MAX_WORLD];
	uint8_t id[NCCL_ID_SIZE];
} world;

struct node {
	pid_t pid;
	int fd;
	uint32_t first, n; /* ranks */
};

static inline void devices_open(void)
{
	gpu_open();
	setenv("FAKECUDA_DEVICES", "8", 1);
	setenv("FAKECUDA_COUNT", "1", 1);
}

/* --- the world ----------------------------------------------------------- */

static inline void make_plan(uint32_t n_shards, uint32_t n_replicas)
{
	const struct plan_policy policy = {.is_per_rank = true,
					   .layout = PLAN_FLAT};
	const struct plan_param params[] = {
		{.name = "w", .type = {DTYPE_F32, 2, {5, 3}, {3, 1}}},
		{.name = "v", .type = {DTYPE_F32, 1, {8}, {1}}},
	};

	cr_assert(zero(int, plan_make(params, 2, &policy, n_shards, n_replicas,
				      &world.plan, NULL)));
}

static inline void world_open(uint32_t n_shards, uint32_t n_replicas)
{
	make_plan(n_shards, n_replicas);
	world.n = n_shards * n_replicas;
	for (uint32_t i = 0; i < world.n; i++) {
		const struct device *device = gpu_nth(i);

		cr_assert(zero(int, vmm_create(device, CHUNK_SIZE,
					       &world.chunk_fds[i], NULL)));
		cr_assert(zero(int,
			       vmm_map(device, world.chunk_fds[i], CHUNK_SIZE,
				       true, &world.chunks[i], NULL)));
	}
	cr_assert(zero(int, nccl_id_make(world.id, NULL)));
}

static inline void world_close(void)
{
	for (uint32_t i = 0; i < world.n; i++) {
		vmm_unmap(&world.chunks[i]);
		close(world.chunk_fds[i]);
	}
	plan_deinit(&world.plan);
	gpu_close();
}

static inline void put(uint32_t rank, uint64_t at, const void *from,
		       size_t size)
{
	gpu_put(gpu_nth(rank),
		(void *)(uintptr_t)(world.chunks[rank].address + at), from,
		size);
}

static inline void get(uint32_t rank, uint64_t at, void *to, size_t size)
{
	gpu_get(gpu_nth(rank), to,
		(void *)(uintptr_t)(world.chunks[rank].address + at), size);
}

/* Returns element `i` of the whole parameters, in the plan's order. */
static inline float element(uint32_t entry, uint64_t i)
{
	return (float)(100 * entry + i + 1);
}

/* Returns how many elements of the entry are in the rank's chunk. Sets
 * `ret_first` to the index of the first of them. */
static inline uint64_t own_part(uint32_t rank, uint32_t entry,
				uint64_t *ret_first)
{
	const struct shard *shard = &world.plan.entries[entry].shard;
	uint64_t first = rank % world.plan.n_shards * shard->chunk_numel;
	uint64_t left = shard->numel > first ? shard->numel - first : 0;

	*ret_first = first;
	return left < shard->chunk_numel ? left : shard->chunk_numel;
}

static inline void put_shards(uint32_t rank)
{
	for (uint32_t e = 0; e < 2; e++) {
		const struct plan_entry *entry = &world.plan.entries[e];
		float chunk[32] = {0};
		uint64_t first, n = own_part(rank, e, &first);

		for (uint64_t i = 0; i < n; i++)
			chunk[i] = element(e, first + i);
		put(rank, AT_SHARDS + entry->shard_offset, chunk,
		    entry->shard.chunk_numel * sizeof(float));
	}
}

static inline void expect_whole(uint32_t rank)
{
	for (uint32_t e = 0; e < 2; e++) {
		const struct plan_entry *entry = &world.plan.entries[e];
		float whole[32];

		get(rank, AT_FULL + entry->full_offset, whole, sizeof(whole));
		for (uint64_t i = 0; i < entry->shard.numel; i++)
			cr_assert(eq(flt, whole[i], element(e, i)));
	}
}

static inline void put_input(uint32_t rank, float times)
{
	for (uint32_t e = 0; e < 2; e++) {
		const struct plan_entry *entry = &world.plan.entries[e];
		float whole[32];

		for (uint64_t i = 0; i < entry->shard.numel; i++)
			whole[i] = times * element(e, i);
		put(rank, AT_INPUT + entry->input_offset, whole,
		    entry->shard.numel * sizeof(float));
	}
}

static inline void expect_grads(uint32_t rank, float times)
{
	for (uint32_t e = 0; e < 2; e++) {
		const struct plan_entry *entry = &world.plan.entries[e];
		float chunk[32];
		uint64_t first, n = own_part(rank, e, &first);

		get(rank, AT_GRADS + entry->grad_offset, chunk, sizeof(chunk));
		for (uint64_t i = 0; i < n; i++)
			cr_assert(eq(flt, chunk[i],
				     times * element(e, first + i)));
	}
}

/* --- nodes --------------------------------------------------------------- */

static inline void send_device_chunk(const struct node *node, uint32_t rank)
{
	const struct job_chunk chunk = {
		.kind = JOB_CHUNK,
		.chunk = 1 + rank,
		.size = CHUNK_SIZE,
		.device = gpu_nth(rank)->uuid,
	};

	send_with_fd(node->fd, &chunk, sizeof(chunk), world.chunk_fds[rank]);
}

static inline struct job_plan plan_message(uint64_t number)
{
	const struct plan *plan = &world.plan;

	return (struct job_plan){
		.kind = JOB_PLAN,
		.n_entries = plan->n_entries,
		.plan = number,
		.n_shards = plan->n_shards,
		.n_replicas = plan->n_replicas,
		.layout = plan->policy.layout,
		.is_per_rank = plan->policy.is_per_rank,
		.n_gather_buckets = plan->n_gather_buckets,
		.n_reduce_buckets = plan->n_reduce_buckets,
		.shards_size = plan->shards_size,
		.full_size = plan->full_size,
		.input_size = plan->input_size,
		.grads_size = plan->grads_size,
		.partial_size = plan->partial_size,
	};
}

/* Start a worker that knows the chunks of these ranks, and the plan. */
static inline void node_start(struct node *node, uint32_t first, uint32_t n)
{
	const struct job_plan plan = plan_message(PLAN);

	node->first = first;
	node->n = n;
	node->fd = worker_start(2, &node->pid);
	for (uint32_t i = 0; i < n; i++)
		send_device_chunk(node, first + i);
	send_plan_with(node->fd, &plan, world.plan.entries);
}

static inline int node_end(const struct node *node)
{
	int status;

	cr_assert(eq(int, waitpid(node->pid, &status, 0), node->pid));
	close(node->fd);
	return status;
}

static inline void node_stop(const struct node *node)
{
	shutdown(node->fd, SHUT_RDWR);
	cr_assert(zero(int, node_end(node)));
}

static inline struct job_comm comm_message(const struct node *node,
					   uint64_t number)
{
	struct job_comm job = {
		.kind = JOB_COMM,
		.n_world = world.n,
		.number = number,
		.comm = COMM,
		.n_shards = world.plan.n_shards,
		.n_local = node->n,
		.timeout_ms = TIMEOUT_MS,
		.has_nccl_id = node->n < world.n,
		.name = "run",
	};

	memcpy(job.nccl_id, world.id, sizeof(world.id));
	for (uint32_t i = 0; i < node->n; i++)
		job.members[i] = (struct job_member){
			.rank = node->first + i,
			.device = gpu_nth(node->first + i)->uuid,
		};
	return job;
}

static inline void node_send_comm(const struct node *node,
				  const struct job_comm *job)
{
	send_with_fd(node->fd, job, sizeof(*job), -1);
}

static inline struct job_range range_of(uint32_t rank, uint64_t at)
{
	return (struct job_range){
		.chunk = 1 + rank, .offset = at, .size = AREA};
}

static inline struct job_device device_job(const struct node *node,
					   uint32_t kind, uint64_t number)
{
	struct job_device job = {
		.kind = kind, .number = number, .comm = COMM, .plan = PLAN};

	for (uint32_t i = 0; i < node->n; i++) {
		struct job_rank *ranges = &job.ranks[i];
		uint32_t rank = node->first + i;

		if (kind == JOB_DEVICE_GATHER) {
			ranges->gather.shards = range_of(rank, AT_SHARDS);
			ranges->gather.full = range_of(rank, AT_FULL);
			continue;
		}
		ranges->reduce.input = range_of(rank, AT_INPUT);
		ranges->reduce.grads = range_of(rank, AT_GRADS);
		ranges->reduce.partial = range_of(rank, AT_PARTIAL);
	}
	return job;
}

static inline void node_send(const struct node *node,
			     const struct job_device *job)
{
	send_with_fd(node->fd, job, sizeof(*job), -1);
}

static inline void node_begin(const struct node *node, uint32_t kind,
			      uint64_t number)
{
	const struct job_device job = device_job(node, kind, number);

	node_send(node, &job);
}

static inline void node_forget(const struct node *node)
{
	const struct job_forget_comm forget = {.kind = JOB_FORGET_COMM,
					       .comm = COMM};

	send_with_fd(node->fd, &forget, sizeof(forget), -1);
}

/* Wait until the worker has called this function of the driver `n` times. */
static inline void await_calls(const struct node *node, const char *what,
			       long n)
{
	const struct timespec moment = {.tv_nsec = 1000000};

	while (gpu_count(node->pid, what) < n)
		nanosleep(&moment, NULL);
}

static inline void expect_done(const struct node *node, uint64_t number)
{
	struct job_done done = receive_done_of(node->fd);

	cr_assert(eq(i32, done.code, 0), "%s", done.sentence);
	cr_assert(eq(u64, done.number, number));
}

/* Expect that the job failed with this code, and that its sentence contains
 * `text`. */
static inline void expect_failed(const struct node *node, uint64_t number,
				 int code, const char *text)
{
	struct job_done done = receive_done_of(node->fd);

	cr_assert(eq(u64, done.number, number));
	cr_assert(eq(i32, done.code, code), "%s", done.sentence);
	cr_assert(strstr(done.sentence, text) != NULL, "\"%s\" has no \"%s\"",
		  done.sentence, text);
}

static inline void node_open(const struct node *node)
{
	const struct job_comm job = comm_message(node, 1);

	node_send_comm(node, &job);
	expect_done(node, 1);
}
