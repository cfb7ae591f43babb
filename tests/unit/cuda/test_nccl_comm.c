/*
 * Tests that ranks of communicators meet, leave, are late, die, and meet again.
 */
#include "cuda/nccl_collective.h"
#include "proto/tensor.h"
#include "tests/unit/cuda/nccl_fixture.h"
#include <time.h>

TestSuite(nccl_comm, .init = mesh_open, .fini = mesh_close, .timeout = 300);

/* --- meeting and parting ------------------------------------------------- */

Test(nccl_comm, ranks_open_and_close_a_communicator)
{
	mesh_join(3, 1);
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}

Test(nccl_comm, a_communicator_may_have_one_rank)
{
	mesh_join(1, 1);
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}

static int has_all_parts(void)
{
	const struct nccl_comm *comm = self.comm;
	ncclComm_t parts[] = {comm->world, comm->gathers, comm->reductions,
			      comm->replicas};

	for (int i = 0; i < 4; i++)
		for (int k = 0; k < i; k++)
			if (!parts[i] || parts[i] == parts[k])
				return -EPROTO;
	return 0;
}

Test(nccl_comm, with_replicas_there_are_three_communicators)
{
	mesh_join(2, 2);
	cr_expect(zero(int, ranks_run(&ranks, has_all_parts)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}

static int has_one_part(void)
{
	const struct nccl_comm *comm = self.comm;

	return comm->gathers && comm->gathers != comm->world &&
			       comm->reductions == comm->world &&
			       !comm->replicas
		       ? 0
		       : -EPROTO;
}

Test(nccl_comm, without_replicas_there_is_one_communicator)
{
	mesh_join(2, 1);
	cr_expect(zero(int, ranks_run(&ranks, has_one_part)));
}

/* The same processes make one communicator after another, each with a new
 * id. */
Test(nccl_comm, ranks_open_a_communicator_again_after_closing_it)
{
	mesh_start(2, 1);
	for (int i = 0; i < 3; i++) {
		cr_assert(zero(int, rank_run(&ranks, 0, rank_make_id)));
		cr_assert(zero(int, ranks_run(&ranks, rank_join)));
		cr_assert(zero(int, ranks_run(&ranks, rank_close)));
	}
}

static int is_busy(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_comm_poll(self.comm, &err), err.msg);
}

Test(nccl_comm, opening_does_not_wait_for_other_ranks)
{
	mesh_start(2, 1);
	cr_assert(zero(int, rank_run(&ranks, 1, rank_begin_open)));
	cr_expect(eq(int, rank_run(&ranks, 1, is_busy), NCCL_COMM_BUSY));
	cr_assert(zero(int, rank_run(&ranks, 0, rank_begin_open)));
	cr_assert(zero(int, ranks_run(&ranks, rank_wait)));
	cr_expect(zero(int, rank_run(&ranks, 1, is_busy)));
}

static void expect_no_mesh(uint32_t n_shards, uint32_t n_replicas,
			   uint32_t n_ranks)
{
	ranks.notes[n_ranks - 1].sentence[0] = '\0';
	mesh->n_shards = n_shards;
	mesh->n_replicas = n_replicas;
	cr_expect(eq(int, rank_run(&ranks, n_ranks - 1, rank_begin_open),
		     -EINVAL));
	expect_said(n_ranks - 1, "ranks count from 0");
}

Test(nccl_comm, an_invalid_mesh_is_refused)
{
	mesh_start(2, 1);
	expect_no_mesh(0, 1, 2);
	expect_no_mesh(1, 0, 2);
	expect_no_mesh(1, 1, 2);
	expect_no_mesh(NCCL_MAX_RANKS + 1, 1, 2);
	expect_no_mesh(2, UINT32_MAX / 2 + 2, 2);
}

/* --- devices ------------------------------------------------------------- */

static int share_device(void)
{
	const struct device *devices;
	uint32_t n;

	must(device_list(&devices, &n, NULL) == 0);
	self.device = &devices[0];
	return 0;
}

static int share_device_as_nodes(void)
{
	become_node(rank_self());
	return share_device();
}

Test(nccl_comm, two_ranks_on_one_gpu_are_refused)
{
	need_fakes();
	mesh_start(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, share_device)));
	ranks_begin(&ranks, rank_join);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[0].code, -EINVAL));
	cr_expect(eq(int, ranks.notes[1].code, -EINVAL));
	expect_said(0, "Duplicate GPU");
	expect_said(1, "Duplicate GPU");
}

Test(nccl_comm, two_nodes_may_have_the_same_gpu)
{
	mesh_start(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, share_device_as_nodes)));
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}

static int is_closed(void)
{
	return self.comm ? -EPROTO : 0;
}

/* --- ranks that are late ------------------------------------------------- */

static void expect_late(uint32_t rank, actor_fn *fn, const char *part)
{
	cr_expect(eq(int, rank_run(&ranks, rank, fn), -ETIMEDOUT));
	expect_said(rank, part);
}

Test(nccl_comm, the_wait_for_a_missing_rank_has_a_time_limit)
{
	mesh_start(2, 1);
	mesh->timeout_ms = 100;
	expect_late(0, rank_join, "waited 100 ms for all 2 ranks to connect");
	cr_assert(zero(int, rank_run(&ranks, 0, rank_abort)));
}

Test(nccl_comm, ranks_can_continue_without_a_missing_rank)
{
	int n_fds;

	mesh_start(3, 1);
	n_fds = rank_run(&ranks, 0, rank_count_fds);
	mesh->timeout_ms = 100;
	actor_kill(&ranks.actors[2]);
	ranks_begin(&ranks, rank_join);
	ranks_end(&ranks);
	cr_assert(eq(int, ranks.notes[0].code, -ETIMEDOUT));
	cr_assert(eq(int, ranks.notes[1].code, -ETIMEDOUT));
	cr_assert(zero(int, ranks_run(&ranks, rank_abort)));
	mesh->n_shards = 2;
	mesh->timeout_ms = TIMEOUT_MS;
	cr_assert(zero(int, rank_run(&ranks, 0, rank_make_id)));
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
	cr_expect(eq(int, rank_run(&ranks, 0, rank_count_fds), n_fds));
}

/* The limit is set only now, because making the communicator may take long. */
static int become_impatient(void)
{
	self.comm->options.timeout_ms = 100;
	return 0;
}

Test(nccl_comm, a_close_that_other_ranks_do_not_join_frees_the_communicator)
{
	need_fakes();
	mesh_join(2, 1);
	cr_assert(zero(int, rank_run(&ranks, 0, become_impatient)));
	expect_late(0, rank_close, "close: communicator 'run'");
	cr_expect(zero(int, rank_run(&ranks, 0, is_closed)));
}

/* --- ranks that die ------------------------------------------------------ */

Test(nccl_comm, the_error_names_a_rank_that_dies_while_others_join)
{
	need_fakes();
	mesh_start(3, 1);
	set_fault(1, "Meet:1:kill");
	cr_assert(zero(int, rank_run(&ranks, 0, rank_begin_open)));
	cr_expect(eq(int, rank_run(&ranks, 1, rank_join), -ECHILD));
	cr_expect(eq(int, rank_run(&ranks, 0, rank_wait), -ECONNABORTED));
	expect_said(0, "rank 1 has gone");
}

Test(nccl_comm, the_death_of_the_rank_that_made_the_id_is_reported)
{
	need_fakes();
	mesh_start(2, 1);
	actor_kill(&ranks.actors[0]);
	cr_expect(eq(int, rank_run(&ranks, 1, rank_join), -EIO));
	expect_said(1, "it must live until all ranks have come");
}

#define CHUNK (UINT64_C(2) << 20)

static CUdeviceptr chunk;

static int allocate_chunk(void)
{
	chunk = rank_allocate(CHUNK);
	return 0;
}

/* Gather 16 bytes of each rank, in place. */
static int begin_gather(void)
{
	struct error err = ERROR_NULL;
	const struct nccl_part part = {chunk + 16 * rank_self(), chunk, 16};
	const struct nccl_gather gather = {
		.parts = &part, .n_parts = 1, .dtype = DTYPE_U8};

	return rank_say(nccl_gather(self.comm, &gather, self.stream, &err),
			err.msg);
}

static int gather(void)
{
	int r = begin_gather();

	return r < 0 ? r : rank_wait_stream();
}

/* Of three ranks, the other two are told, and continue as two. */
static void expect_death_survived(void)
{
	for (uint32_t rank = 0; rank < 2; rank++) {
		cr_expect(eq(int, ranks.notes[rank].code, -ECONNABORTED));
		expect_said(rank, "all ranks must leave and join again");
	}
	actor_kill(&ranks.actors[2]);
	cr_assert(zero(int, ranks_run(&ranks, rank_abort)));
	mesh->n_shards = 2;
	cr_assert(zero(int, rank_run(&ranks, 0, rank_make_id)));
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_expect(zero(int, ranks_run(&ranks, gather)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}

Test(nccl_comm, other_ranks_survive_a_death_within_a_collective)
{
	need_fakes();
	mesh_start(3, 1);
	set_fault(2, "Run:2:kill");
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_assert(zero(int, ranks_run(&ranks, gather)));
	ranks_begin(&ranks, gather);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[2].code, -ECHILD));
	expect_death_survived();
}

Test(nccl_comm, other_ranks_survive_a_death_between_collectives)
{
	need_fakes();
	mesh_join(3, 1);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_assert(zero(int, ranks_run(&ranks, gather)));
	actor_kill(&ranks.actors[2]);
	ranks_begin(&ranks, gather);
	ranks_end(&ranks);
	expect_death_survived();
}

Test(nccl_comm, the_wait_for_a_collective_has_a_time_limit)
{
	mesh_join(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_assert(zero(int, rank_run(&ranks, 0, become_impatient)));
	expect_late(0, gather, "one is late, or makes other calls");
	cr_assert(zero(int, ranks_run(&ranks, rank_abort)));
}

/* An abort ends a collective that hangs. */
static int wait_for_end_of_stream(void)
{
	must(context_enter(self.device, NULL) == 0);
	must(cu.StreamSynchronize(self.stream) == CUDA_SUCCESS);
	context_leave();
	return 0;
}

Test(nccl_comm, an_abort_ends_work_on_the_stream)
{
	mesh_join(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_assert(zero(int, ranks_run(&ranks, gather)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin_gather)));
	cr_assert(zero(int, rank_run(&ranks, 0, rank_abort)));
	cr_expect(zero(int, rank_run(&ranks, 0, wait_for_end_of_stream)));
}

Test(nccl_comm, an_abort_leaves_no_state_and_may_be_repeated)
{
	mesh_join(2, 1);
	cr_expect(zero(int, ranks_run(&ranks, rank_abort)));
	cr_expect(zero(int, ranks_run(&ranks, is_closed)));
	cr_expect(zero(int, ranks_run(&ranks, rank_abort)));
	cr_expect(eq(int, ranks_run(&ranks, gather), -ECONNABORTED));
	cr_expect(eq(int, ranks_run(&ranks, rank_wait_stream), -ECONNABORTED));
	cr_expect(eq(int, ranks_run(&ranks, rank_close), -ECONNABORTED));
	expect_said(0, "the communicator was aborted");
}

/* --- calls that are in progress ------------------------------------------ */

static unsigned int n_sleeps;

/* This replaces the C library's function in this program, so that sleeps can be
 * counted. */
int nanosleep(const struct timespec *time, struct timespec *left)
{
	n_sleeps++;
	return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left) == 0 ? 0 : -1;
}

/* Each call of the fake is in progress when it returns (tests/fakes/nccl). If
 * the process has to wait for a CPU, the call may sleep nevertheless, so try
 * again. */
static int gather_until_awake(void)
{
	bool is_awake = false;
	int r = 0;

	while (r == 0 && !is_awake) {
		n_sleeps = 0;
		r = begin_gather();
		is_awake = n_sleeps == 0;
		if (r == 0)
			r = rank_wait_stream();
	}
	return r;
}

Test(nccl_comm, a_call_that_ends_soon_is_awaited_without_sleeping)
{
	need_fakes();
	mesh_join(1, 1);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_expect(zero(int, ranks_run(&ranks, gather_until_awake)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}

/* The first collective waits until the other ranks come, but not longer than
 * the limit. */
Test(nccl_comm, a_first_collective_that_connects_ranks_has_a_time_limit)
{
	setenv("NCCL_RUNTIME_CONNECT", "1", 1);
	mesh_join(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_assert(zero(int, rank_run(&ranks, 0, become_impatient)));
	expect_late(0, begin_gather, "one is late");
	cr_expect(zero(int, ranks_run(&ranks, rank_abort)));
}

/* --- ends that NCCL does not come to ------------------------------------- */

static int gather_behind_what_does_not_end(void)
{
	rank_hold(self.stream);
	return begin_gather();
}

Test(nccl_comm, an_abort_has_a_time_limit_and_may_be_repeated)
{
	mesh_join(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_assert(zero(int, ranks_run(&ranks, gather)));
	cr_assert(zero(int,
		       rank_run(&ranks, 0, gather_behind_what_does_not_end)));
	expect_late(0, rank_abort, "NCCL has not released GPU-");
	cr_expect(eq(int, rank_run(&ranks, 0, gather), -ECONNABORTED));
	cr_assert(zero(int, rank_run(&ranks, 0, rank_let_go)));
	cr_expect(zero(int, rank_run(&ranks, 0, rank_abort)));
	cr_expect(zero(int, rank_run(&ranks, 0, is_closed)));
	cr_expect(zero(int, rank_run(&ranks, 1, rank_abort)));
}

Test(nccl_comm, a_close_has_a_time_limit_if_another_rank_hangs)
{
	need_fakes();
	mesh_start(2, 1);
	set_fault(1, "CommDestroy:1:hang");
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_assert(zero(int, ranks_run(&ranks, become_impatient)));
	ranks_begin(&ranks, rank_close);
	ranks_end(&ranks);
	for (uint32_t rank = 0; rank < 2; rank++) {
		cr_expect(eq(int, ranks.notes[rank].code, -ETIMEDOUT));
		expect_said(rank, "NCCL has not released GPU-");
	}
	actor_kill(&ranks.actors[1]);
	cr_expect(zero(int, rank_run(&ranks, 0, rank_abort)));
}

/* --- faults -------------------------------------------------------------- */

/* A rank that fails leaves at once, so that the others need not wait. */
static int join_or_leave(void)
{
	int r = rank_join();

	if (r < 0)
		(void)nccl_comm_abort(&self.comm, NULL);
	return r;
}

static void expect_all_well(void)
{
	mesh->timeout_ms = TIMEOUT_MS;
	cr_assert(zero(int, rank_run(&ranks, 0, rank_make_id)));
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
	ranks_stop(&ranks);
}

/* Rank 1 fails in this way; no rank hangs, and then all meet again. */
static void expect_recovery(const char *fault, actor_fn *fn)
{
	ranks_begin(&ranks, fn);
	ranks_end(&ranks);
	cr_expect(eq(int, ranks.notes[1].code, -EIO), "%s", fault);
	expect_said(1, "internal error");
	cr_expect(ne(int, ranks.notes[0].code, 0), "%s", fault);
	expect_all_well();
}

/* `timeout_ms` is the time for which the others wait if rank 1 does not come at
 * all. */
static void expect_opening_to_fail(const char *fault, uint32_t timeout_ms)
{
	mesh_start(2, 2);
	set_fault(1, fault);
	mesh->timeout_ms = timeout_ms;
	expect_recovery(fault, join_or_leave);
}

Test(nccl_comm, all_ranks_recover_from_a_failure_to_open)
{
	need_fakes();
	expect_opening_to_fail("CommInitRankConfig:1:3", 100);
	expect_opening_to_fail("CommGetAsyncError:1:3", 100);
	expect_opening_to_fail("Meet:1:3", 100);
	expect_opening_to_fail("Meet:2:3", TIMEOUT_MS);
	expect_opening_to_fail("CommSplit:1:3", TIMEOUT_MS);
	expect_opening_to_fail("CommSplit:2:3", TIMEOUT_MS);
}

static void expect_closing_to_fail(const char *fault)
{
	mesh_start(2, 2);
	set_fault(1, fault);
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	expect_recovery(fault, rank_close);
}

Test(nccl_comm, all_ranks_recover_from_a_failure_to_close)
{
	need_fakes();
	expect_closing_to_fail("CommFinalize:1:3");
	expect_closing_to_fail("CommFinalize:3:3");
	expect_closing_to_fail("CommDestroy:1:3");
}

/* --- registrations ------------------------------------------------------- */

static int register_chunk(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_comm_register(self.comm, chunk, CHUNK, &err),
			err.msg);
}

static int count_registrations(void)
{
	return (int)self.comm->n_registrations;
}

/* Test a communicator with one part (one replica) or with two parts. */
static void expect_registered_once(uint32_t n_replicas)
{
	mesh_join(2, n_replicas);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_expect(zero(int, ranks_run(&ranks, register_chunk)));
	cr_expect(zero(int, ranks_run(&ranks, register_chunk)));
	cr_expect(eq(int, rank_run(&ranks, 0, count_registrations), 1));
	/* The close must deregister the chunk, because the fake refuses to
	 * release registered memory. */
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
	ranks_stop(&ranks);
}

Test(nccl_comm, a_chunk_is_registered_once_until_the_close)
{
	expect_registered_once(1);
	expect_registered_once(2);
}

/* If one of two parts cannot register the chunk, the other part must deregister
 * it. Otherwise the fake would refuse to release it. */
Test(nccl_comm, a_chunk_is_registered_completely_or_not_at_all)
{
	need_fakes();
	mesh_start(2, 2);
	set_fault(1, "CommRegister:2:3");
	cr_assert(zero(int, ranks_run(&ranks, rank_join)));
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_expect(eq(int, ranks_run(&ranks, register_chunk), -EIO));
	cr_expect(zero(int, rank_run(&ranks, 1, count_registrations)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}

static int deregister_chunk(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_comm_deregister(self.comm, chunk, &err), err.msg);
}

Test(nccl_comm, a_chunk_may_be_deregistered_twice_and_registered_again)
{
	mesh_join(2, 2);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_assert(zero(int, ranks_run(&ranks, register_chunk)));
	cr_expect(zero(int, ranks_run(&ranks, deregister_chunk)));
	cr_expect(zero(int, rank_run(&ranks, 0, count_registrations)));
	cr_expect(zero(int, ranks_run(&ranks, deregister_chunk)));
	cr_expect(zero(int, ranks_run(&ranks, register_chunk)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}

static int register_more_than_chunk(void)
{
	struct error err = ERROR_NULL;

	return rank_say(nccl_comm_register(self.comm, chunk, 8 * CHUNK, &err),
			err.msg);
}

Test(nccl_comm, memory_that_cannot_be_registered_can_still_be_used)
{
	need_fakes();
	mesh_join(2, 1);
	cr_assert(zero(int, ranks_run(&ranks, allocate_chunk)));
	cr_expect(
		eq(int, ranks_run(&ranks, register_more_than_chunk), -EINVAL));
	expect_said(0, "not within one chunk");
	cr_expect(zero(int, ranks_run(&ranks, gather)));
	cr_expect(zero(int, ranks_run(&ranks, rank_close)));
}
