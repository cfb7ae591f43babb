#include "cuda/nccl_rank.h"
#include "cuda/context.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

/* --- opening ------------------------------------------------------------- */

static int make_stream(CUstream *ret, struct error *err)
{
	int least, greatest;
	CUresult result = cu.CtxGetStreamPriorityRange(&least, &greatest);

	if (result == CUDA_SUCCESS)
		result = cu.StreamCreateWithPriority(
			ret, CU_STREAM_NON_BLOCKING, greatest);
	return driver_error(err, result,
			    "cannot make a stream for collectives");
}

static int make_words(struct nccl_rank *rank, struct error *err)
{
	return driver_error(err,
			    cu.MemAlloc(&rank->words,
					(rank->n_world + 1) * sizeof(uint64_t)),
			    "cannot make memory to compare ranks");
}

int nccl_rank_open(const struct nccl_comm_options *options, bool is_spanning,
		   struct nccl_rank *ret, struct error *err)
{
	struct nccl_rank *rank = ret;
	int r;

	*rank = (struct nccl_rank){
		.device = options->device,
		.rank = options->rank,
		.n_world = options->n_shards * options->n_replicas,
	};
	r = context_enter(rank->device, err);
	if (r < 0)
		return r;
	r = make_stream(&rank->gather_stream, err);
	if (r == 0)
		r = make_stream(&rank->reduce_stream, err);
	if (r == 0 && is_spanning)
		r = make_words(rank, err);
	if (r == 0)
		r = nccl_comm_open(options, &rank->comm, err);
	context_leave();
	return r;
}

/* --- comparing ----------------------------------------------------------- */

/* Gathers the values of all ranks in the words. This rank's own value is copied
 * to the word after them. */
static int exchange(struct nccl_rank *rank, const uint64_t *value,
		    struct error *err)
{
	CUdeviceptr own = rank->words + rank->n_world * sizeof(*value);
	ncclResult_t result;
	int r;

	r = driver_error(err,
			 cu.MemcpyHtoDAsync(own, value, sizeof(*value),
					    rank->gather_stream),
			 "cannot copy a word to the device");
	if (r < 0)
		return r;
	result = nccl.AllGather((const void *)own, (void *)rank->words, 1,
				ncclUint64, rank->comm->world,
				rank->gather_stream);
	return nccl_comm_called(rank->comm, result, "compare what ranks have",
				err);
}

int nccl_rank_begin_verify(struct nccl_rank *rank, uint64_t value,
			   struct error *err)
{
	int r;

	if (!rank->words)
		return 0;
	r = nccl_comm_wait(rank->comm, err);
	if (r == 0)
		r = context_enter(rank->device, err);
	if (r < 0)
		return r;
	r = exchange(rank, &value, err);
	context_leave();
	return r;
}

/* The copy uses the gather stream, because cuMemcpyDtoH() would also wait for
 * streams of the program. */
static int read_words(const struct nccl_rank *rank, uint64_t *ret,
		      struct error *err)
{
	int r = context_enter(rank->device, err);

	if (r < 0)
		return r;
	r = driver_error(err,
			 cu.MemcpyDtoHAsync(ret, rank->words,
					    rank->n_world * sizeof(*ret),
					    rank->gather_stream),
			 "cannot copy words from the device");
	if (r == 0)
		r = driver_error(err, cu.StreamSynchronize(rank->gather_stream),
				 "cannot copy words from the device");
	context_leave();
	return r;
}

int nccl_rank_end_verify(const struct nccl_rank *rank, uint64_t value,
			 const char *what, struct error *err)
{
	uint64_t *words;
	int r;

	if (!rank->words)
		return 0;
	words = calloc(rank->n_world, sizeof(*words));
	if (!words)
		return error_nomem(err, "the comparison of ranks");
	r = read_words(rank, words, err);
	for (uint32_t i = 0; i < rank->n_world && r == 0; i++) {
		if (words[i] != value)
			r = error_set(err, -EINVAL,
				      "%s differs: it is %" PRIu64
				      " on rank %u and %" PRIu64
				      " on rank %u, of other nodes",
				      what, value, rank->rank, words[i], i);
	}
	free(words);
	return r;
}

/* --- ending -------------------------------------------------------------- */

static bool is_done(CUstream stream)
{
	return !stream || cu.StreamQuery(stream) != CUDA_ERROR_NOT_READY;
}

bool nccl_rank_is_idle(const struct nccl_rank *rank)
{
	bool is_idle;

	if (!rank->device || context_enter(rank->device, NULL) < 0)
		return true;
	is_idle = is_done(rank->gather_stream) && is_done(rank->reduce_stream);
	context_leave();
	return is_idle;
}

void nccl_rank_free(struct nccl_rank *rank)
{
	if (!rank->device || rank->comm ||
	    context_enter(rank->device, NULL) < 0)
		return;
	if (rank->gather_stream)
		(void)cu.StreamDestroy(rank->gather_stream);
	if (rank->reduce_stream)
		(void)cu.StreamDestroy(rank->reduce_stream);
	if (rank->words)
		(void)cu.MemFree(rank->words);
	context_leave();
}
