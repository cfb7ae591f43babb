/*
 * Tests a rank's state on its device: its streams, a comparison with all other
 * ranks, and its end.
 */
#include "cuda/nccl_rank.h"
#include "tests/lib/fake_nccl.h"
#include "tests/unit/cuda/nccl_fixture.h"

TestSuite(nccl_rank, .init = mesh_open, .fini = mesh_close, .timeout = 300);

/* Variables of a rank. */
static struct nccl_rank own;

static int open_over_nodes(void)
{
	struct error err = ERROR_NULL;
	const struct nccl_comm_options options = {
		.name = "run",
		.device = self.device,
		.id = mesh->id,
		.n_shards = mesh->n_shards,
		.n_replicas = mesh->n_replicas,
		.rank = rank_self(),
		.timeout_ms = mesh->timeout_ms,
	};
	int r = nccl_rank_open(&options, true, &own, &err);

	if (r == 0)
		r = nccl_comm_wait(own.comm, &err);
	return rank_say(r, err.msg);
}

static int close_and_free(void)
{
	struct error err = ERROR_NULL;
	int r = nccl_comm_close(&own.comm, &err);

	nccl_rank_free(&own);
	return rank_say(r, err.msg);
}

static void begin(uint32_t n_shards, uint32_t n_replicas)
{
	mesh_start(n_shards, n_replicas);
	cr_assert(zero(int, ranks_run(&ranks, open_over_nodes)));
}

/* --- streams ------------------------------------------------------------- */

static int has_urgent_streams(void)
{
	int least, greatest;

	must(context_enter(self.device, NULL) == 0);
	must(cu.CtxGetStreamPriorityRange(&least, &greatest) == CUDA_SUCCESS);
	context_leave();
	must(greatest < least);
	return stream_priority(own.gather_stream) == greatest &&
			       stream_priority(own.reduce_stream) == greatest
		       ? 0
		       : -EPROTO;
}

Test(nccl_rank, streams_of_a_rank_have_the_highest_priority)
{
	need_fakes();
	begin(1, 1);
	cr_expect(zero(int, ranks_run(&ranks, has_urgent_streams)));
	cr_expect(zero(int, ranks_run(&ranks, close_and_free)));
}

/* --- comparing ----------------------------------------------------------- */

static int verify(uint64_t value)
{
	struct error err = ERROR_NULL;
	int r = nccl_rank_begin_verify(&own, value, &err);

	if (r == 0)
		r = nccl_comm_wait_stream(own.comm, own.gather_stream, &err);
	if (r == 0)
		r = nccl_rank_end_verify(&own, value, "the step", &err);
	return rank_say(r, err.msg);
}

static int verify_rank(void)
{
	return verify(10 + rank_self());
}

static int verify_constant(void)
{
	return verify(UINT64_MAX - 1);
}

Test(nccl_rank, all_ranks_get_an_error_for_a_value_that_differs)
{
	begin(2, 2);
	cr_expect(zero(int, ranks_run(&ranks, verify_constant)));
	cr_expect(eq(int, ranks_run(&ranks, verify_rank), -EINVAL));
	expect_said(0, "the step differs: it is 10 on rank 0 and 11 on rank 1");
	expect_said(3, "it is 13 on rank 3 and 10 on rank 0");
	cr_expect(zero(int, ranks_run(&ranks, verify_constant)));
	cr_expect(zero(int, ranks_run(&ranks, close_and_free)));
}

/* --- ends ---------------------------------------------------------------- */

static int is_kept_while_nccl_is_late(void)
{
	struct error err = ERROR_NULL;
	int r;

	must(nccl_rank_is_idle(&own));
	rank_hold(own.gather_stream);
	must(nccl_rank_begin_verify(&own, 1, NULL) == 0);
	must(!nccl_rank_is_idle(&own));
	r = nccl_comm_abort(&own.comm, &err);
	if (r != -ETIMEDOUT)
		return rank_say(-EPROTO, "the abort was not late");
	nccl_rank_free(&own);
	must(!rank_is_done(own.gather_stream));
	must(!nccl_rank_is_idle(&own));
	rank_let_go();
	must(nccl_comm_abort(&own.comm, NULL) == 0);
	nccl_rank_free(&own);
	return 0;
}

Test(nccl_rank, streams_are_kept_until_nccl_has_released_them)
{
	begin(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, verify_constant)));
	cr_expect(zero(int, ranks_run(&ranks, is_kept_while_nccl_is_late)));
}
