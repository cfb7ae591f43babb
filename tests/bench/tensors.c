/*
 * Rows tensor_*: collectives on the callers' tensors, of f32 in ordinary memory
 * of the ranks, by 2 and by 4 ranks. The row shows the worse of the two.
 *
 * An iteration is one call of each rank. The size is that of the largest tensor
 * of a rank. The floor is a memcpy of such a tensor in each of as many
 * processes, without any agreement. For small tensors the floor is a barrier of
 * as many ranks, because most of the time goes into waiting for each other.
 * Each process has a CPU of its own, as far as there are enough.
 */
#include "bench.h"
#include "daemon.h"
#include "fsdp.h"
#include "side.h"
#include <stdlib.h>
#include <string.h>

#define KIB       UINT64_C(1024)
#define MIB       (KIB * KIB)
#define MAX_RANKS 4

struct rank;
typedef int call_fn(struct rank *rank);

struct tensors {
	const char *socket;
	call_fn *call;
	uint32_t n_ranks;
	uint64_t size;
	bool is_floor;
};

struct rank {
	const struct tensors *tensors;
	struct fsdp_client *client;
	struct fsdp_comm *comm;
	uint32_t rank;
	uint64_t n; /* elements of a whole tensor */
	float *in, *out;
	struct fsdp_part in_parts[MAX_RANKS], out_parts[MAX_RANKS];
};

/* --- calls --------------------------------------------------------------- */

static uint64_t part(const struct rank *rank)
{
	return rank->n / rank->tensors->n_ranks;
}

static int broadcast(struct rank *rank)
{
	return fsdp_broadcast(rank->comm, FSDP_F32, rank->in, rank->n, 0);
}

static int all_reduce(struct rank *rank)
{
	return fsdp_all_reduce(rank->comm, FSDP_F32, FSDP_SUM, rank->in,
			       rank->out, rank->n);
}

static int reduce(struct rank *rank)
{
	return fsdp_reduce_to(rank->comm, FSDP_F32, FSDP_SUM, rank->in,
			      rank->out, rank->n, 0);
}

static int all_gather(struct rank *rank)
{
	return fsdp_all_gather(rank->comm, FSDP_F32, rank->in, part(rank),
			       rank->out_parts);
}

static int gather(struct rank *rank)
{
	return fsdp_gather_to(rank->comm, FSDP_F32, rank->in, part(rank),
			      rank->out_parts, 0);
}

static int scatter(struct rank *rank)
{
	return fsdp_scatter_from(rank->comm, FSDP_F32, rank->in_parts,
				 rank->out, part(rank), 0);
}

static int reduce_scatter(struct rank *rank)
{
	return fsdp_reduce_scatter(rank->comm, FSDP_F32, FSDP_SUM,
				   rank->in_parts, rank->out, part(rank));
}

static int all_to_all(struct rank *rank)
{
	return fsdp_all_to_all(rank->comm, FSDP_F32, rank->in_parts,
			       rank->out_parts);
}

static int barrier(struct rank *rank)
{
	return fsdp_barrier(rank->comm, -1);
}

static int copy(struct rank *rank)
{
	memcpy(rank->out, rank->in, rank->tensors->size);
	/* This keeps the compiler from dropping a copy. */
	__asm__ volatile("" ::"r"(rank->out) : "memory");
	return 0;
}

/* Send to the next rank, and receive from the previous one. */
static int send(struct rank *rank)
{
	uint32_t n = rank->tensors->n_ranks;
	struct fsdp_transfer *out, *in;
	int r = fsdp_send(rank->comm, FSDP_F32, rank->in, rank->n,
			  (rank->rank + 1) % n, 0, &out);

	if (r == 0)
		r = fsdp_receive(rank->comm, FSDP_F32, rank->out, rank->n,
				 (rank->rank + n - 1) % n, 0, &in);
	if (r == 0)
		r = fsdp_transfer_wait(in, -1, NULL);
	return r < 0 ? r : fsdp_transfer_wait(out, -1, NULL);
}

/* --- a rank -------------------------------------------------------------- */

static void make_memory(struct rank *rank)
{
	uint64_t size = rank->tensors->size;

	rank->n = size / sizeof(float);
	rank->in = malloc(size);
	rank->out = malloc(size);
	if (!rank->in || !rank->out)
		die("no memory for the tensors of a rank");
	for (uint64_t i = 0; i < rank->n; i++)
		rank->in[i] = 1;
	memset(rank->out, 0, size);
	for (uint32_t i = 0; i < rank->tensors->n_ranks; i++) {
		rank->in_parts[i].data = rank->in + i * part(rank);
		rank->in_parts[i].count = part(rank);
		rank->out_parts[i].data = rank->out + i * part(rank);
		rank->out_parts[i].count = part(rank);
	}
}

static const char *tensors_name(const struct tensors *tensors)
{
	return tensors->is_floor ? "bench/floor" : "bench/ours";
}

static void prepare(void *data, const struct stage_order *order)
{
	struct rank *rank = data;
	const struct tensors *tensors = rank->tensors;

	(void)order;
	make_memory(rank);
	rank->client = client_open(tensors->socket);
	must(fsdp_comm_join(rank->client, tensors_name(tensors),
			    tensors->n_ranks, rank->rank, NULL, &rank->comm),
	     "join");
}

static void iterate(void *data, const struct stage_order *order)
{
	struct rank *rank = data;

	(void)order;
	must(rank->tensors->call(rank), "a collective");
}

static void release(void *data)
{
	struct rank *rank = data;

	free(rank->in);
	free(rank->out);
	fsdp_comm_leave(rank->comm);
}

static void serve(struct stage *stage, uint32_t rank_index, void *data)
{
	static const struct stage_acts acts = {prepare, iterate, release};
	struct rank rank = {.tensors = data, .rank = rank_index};

	stage_serve(stage, rank_index, &acts, &rank);
	fsdp_close(rank.client);
}

/* --- rows ---------------------------------------------------------------- */

static void open_side(struct side *side, const struct bench *bench,
		      struct tensors *tensors)
{
	party_start(&side->party, bench, tensors->is_floor ? "floor" : "ranks",
		    tensors->n_ranks, APART, serve, tensors);
	side_open(side, &(struct stage_order){0});
}

static void compare(const struct bench *bench, struct tensors *tensors,
		    struct result *ret)
{
	struct tensors bare = *tensors;
	struct side ours, floor;

	bare.is_floor = true;
	bare.call = tensors->size > KIB ? copy : barrier;
	open_side(&ours, bench, tensors);
	open_side(&floor, bench, &bare);
	sides_compare(&ours, &floor, bench, ret);
}

static void run_row(const struct bench *bench, call_fn *call, uint64_t size,
		    struct result *ret)
{
	struct tensors tensors = {.call = call, .size = size};
	struct result result;
	struct daemon daemon;

	*ret = (struct result){0};
	daemon_start(&daemon, bench,
		     &(struct daemon_options){.is_unpinned = true});
	tensors.socket = daemon.socket;
	for (uint32_t n_ranks = 2; n_ranks <= MAX_RANKS; n_ranks += 2) {
		tensors.n_ranks = n_ranks;
		compare(bench, &tensors, &result);
		if (result.ratio > ret->ratio)
			*ret = result;
	}
	daemon_stop(&daemon);
}

#define ROW(name, ...)                                                         \
	void name(const struct bench *bench, struct result *ret)               \
	{                                                                      \
		run_row(bench, __VA_ARGS__, ret);                              \
	}

ROW(tensor_all_reduce_1kib, all_reduce, KIB)
ROW(tensor_all_reduce_1mib, all_reduce, MIB)
ROW(tensor_all_reduce_64mib, all_reduce, 64 * MIB)
ROW(tensor_broadcast, broadcast, MIB)
ROW(tensor_reduce, reduce, MIB)
ROW(tensor_all_gather, all_gather, MIB)
ROW(tensor_gather, gather, MIB)
ROW(tensor_scatter, scatter, MIB)
ROW(tensor_reduce_scatter, reduce_scatter, MIB)
ROW(tensor_all_to_all, all_to_all, MIB)
ROW(tensor_send, send, MIB)
