/*
 * The collectives of an MPI library, for comparison in `fsdp-bench
 * collectives`. This program is built once for each MPI library that is
 * installed, and fsdp-bench starts it through that library's mpirun; fsdpd
 * needs none of them. It gets its orders from a stage, whose file is its
 * argument, as our ranks do. Floats are summed; MPI has no bfloat16, and casts
 * nothing.
 *
 * There are two ways to wait for a collective: in the library's own call, or by
 * testing and yielding. Before each size the program tries both and takes the
 * quicker one. With more ranks than CPUs the second lets others run where the
 * library does not do so itself (Debian's MPICH does not, whatever
 * MPIR_CVAR_POLLS_BEFORE_YIELD says).
 *
 * The size of an order is that of the whole tensor, after an all-gather or
 * before a reduction. Buffers are in huge pages if the kernel gives any, and
 * are touched before they are timed.
 */
#include "stage.h"
#include <mpi.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>

#define N_TRIES 3
#define LARGE   (8u << 20) /* larger collectives are tried only once */

struct peer {
	int rank, n_ranks;
	bool is_yielding;
	float *in, *out;
	uint64_t in_size, out_size; /* bytes that are mapped */
};

static void __attribute__((noreturn)) die(const char *what)
{
	fprintf(stderr, "mpi_peer: %s\n", what);
	MPI_Abort(MPI_COMM_WORLD, 1);
	abort();
}

static float *map_floats(uint64_t size)
{
	void *memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
			    MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		die("no memory for buffers");
	madvise(memory, size, MADV_HUGEPAGE);
	memset(memory, 0, size);
	return memory;
}

static int run_blocking(const struct peer *peer, uint32_t collective, int n,
			int n_part)
{
	switch (collective) {
	case ALL_GATHER:
		return MPI_Allgather(peer->in, n_part, MPI_FLOAT, peer->out,
				     n_part, MPI_FLOAT, MPI_COMM_WORLD);
	case REDUCE_SCATTER:
		return MPI_Reduce_scatter_block(peer->in, peer->out, n_part,
						MPI_FLOAT, MPI_SUM,
						MPI_COMM_WORLD);
	default:
		return MPI_Allreduce(peer->in, peer->out, n, MPI_FLOAT, MPI_SUM,
				     MPI_COMM_WORLD);
	}
}

static int begin(const struct peer *peer, uint32_t collective, int n,
		 int n_part, MPI_Request *ret)
{
	switch (collective) {
	case ALL_GATHER:
		return MPI_Iallgather(peer->in, n_part, MPI_FLOAT, peer->out,
				      n_part, MPI_FLOAT, MPI_COMM_WORLD, ret);
	case REDUCE_SCATTER:
		return MPI_Ireduce_scatter_block(peer->in, peer->out, n_part,
						 MPI_FLOAT, MPI_SUM,
						 MPI_COMM_WORLD, ret);
	default:
		return MPI_Iallreduce(peer->in, peer->out, n, MPI_FLOAT,
				      MPI_SUM, MPI_COMM_WORLD, ret);
	}
}

static int run_yielding(const struct peer *peer, uint32_t collective, int n,
			int n_part)
{
	MPI_Request request;
	int is_done = 0;
	int r;

	r = begin(peer, collective, n, n_part, &request);
	while (r == MPI_SUCCESS && !is_done) {
		r = MPI_Test(&request, &is_done, MPI_STATUS_IGNORE);
		if (!is_done)
			sched_yield();
	}
	return r;
}

static void iterate(void *data, const struct stage_order *order)
{
	struct peer *peer = data;
	int n = (int)(order->size / sizeof(float));
	int n_part = n / peer->n_ranks;
	int r;

	r = (peer->is_yielding ? run_yielding : run_blocking)(
		peer, order->collective, n, n_part);
	if (r != MPI_SUCCESS)
		die("a collective failed");
}

/* Returns the seconds of a few collectives, after one that is not timed. */
static double try(struct peer *peer, const struct stage_order *order,
		  bool is_yielding)
{
	int n = order->size < LARGE ? N_TRIES : 1;
	double start;

	peer->is_yielding = is_yielding;
	iterate(peer, order);
	start = MPI_Wtime();
	for (int i = 0; i < n; i++)
		iterate(peer, order);
	return MPI_Wtime() - start;
}

/* Rank 0 decides for all ranks. */
static void choose(struct peer *peer, const struct stage_order *order)
{
	double blocking = try(peer, order, false);
	int is_yielding = try(peer, order, true) < blocking;

	if (MPI_Bcast(&is_yielding, 1, MPI_INT, 0, MPI_COMM_WORLD) !=
	    MPI_SUCCESS)
		die("a broadcast failed");
	peer->is_yielding = is_yielding;
}

/* Every rank passes its rank + 1 in all elements. */
static float expected(const struct peer *peer, const struct stage_order *order,
		      uint64_t i)
{
	uint64_t n_part = order->size / sizeof(float) / (uint64_t)peer->n_ranks;

	if (order->collective == ALL_GATHER)
		return (float)(i / n_part + 1);
	return (float)(peer->n_ranks * (peer->n_ranks + 1) / 2);
}

static void prepare(void *data, const struct stage_order *order)
{
	struct peer *peer = data;
	uint64_t part = order->size / (uint64_t)peer->n_ranks;

	peer->in_size = order->collective == ALL_GATHER ? part : order->size;
	peer->out_size =
		order->collective == REDUCE_SCATTER ? part : order->size;
	peer->in = map_floats(peer->in_size);
	peer->out = map_floats(peer->out_size);
	for (uint64_t i = 0; i < peer->in_size / sizeof(float); i++)
		peer->in[i] = (float)(peer->rank + 1);
	choose(peer, order);
	for (uint64_t i = 0; i < peer->out_size / sizeof(float); i++)
		if (peer->out[i] != expected(peer, order, i))
			die("a result is wrong");
}

static void release(void *data)
{
	struct peer *peer = data;

	munmap(peer->in, peer->in_size);
	munmap(peer->out, peer->out_size);
}

int main(int argc, char **argv)
{
	static const struct stage_acts acts = {prepare, iterate, release};
	struct stage *stage;
	struct peer peer;

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	MPI_Init(&argc, &argv);
	MPI_Comm_rank(MPI_COMM_WORLD, &peer.rank);
	MPI_Comm_size(MPI_COMM_WORLD, &peer.n_ranks);
	if (argc != 2 || stage_open(argv[1], &stage) < 0 ||
	    (int)stage->n_ranks != peer.n_ranks)
		die("fsdp-bench starts this with the file of its stage");
	stage_serve(stage, (uint32_t)peer.rank, &acts, &peer);
	stage_close(stage);
	MPI_Finalize();
	return 0;
}
