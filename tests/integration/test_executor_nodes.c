/*
 * Tests communicators of two nodes, which are two brokers with their
 * fsdp-workers as executors: the order of calls, comparisons between nodes, and
 * a rank that dies while NCCL is opened.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/executor.h"
#include <errno.h>
#include <stdatomic.h>

TestSuite(executor_nodes, .init = executor_set_up, .fini = executor_tear_down,
	  .timeout = 300);

static uint8_t *nccl_id; /* shared */
static _Atomic bool *has_id;

static void start_nodes(uint32_t n)
{
	nccl_id = shared_memory(FSDP_NCCL_ID_SIZE);
	has_id = shared_memory(sizeof(*has_id));
	daemon_start(&executor_other);
	executor_start(n, 1);
}

/* The last rank is on the other node. */
static int join_node(const struct layer *layer)
{
	bool is_last = rank_self() == rank_world() - 1;

	crew_set(&(struct crew){
		.daemon = is_last ? &executor_other : &executor_daemon,
		.comm = "job",
		.options = {.n_local = is_last ? 1 : rank_world() - 1,
			    .nccl_id = nccl_id},
		.layers = layer,
		.n_layers = 1,
	});
	if (rank_self() == 0) {
		must(fsdp_nccl_id(nccl_id) == 0);
		atomic_store(has_id, true);
	}
	while (!atomic_load(has_id))
		nap_ms(1);
	return trainer_join();
}

static int join_nodes(void)
{
	return join_node(&EXECUTOR_LAYERS[0]);
}

static int join_with_other_plan(void)
{
	static const struct layer differing = {"l0", EXECUTOR_PARAMS, 1, {0}};

	return join_node(rank_self() ? &differing : &EXECUTOR_LAYERS[0]);
}

static int reduce_and_unshard(void)
{
	int r = trainer_reduce(0, 0, NULL, false);

	return r < 0 ? r : trainer_unshard(0);
}

static void await_unshard(void)
{
	do
		cr_assert(zero(int, fsdp_comms(executor_client,
					       executor_note_comm, NULL)));
	while (!executor_seen.n_in_flight);
}

/* On the first node the unshard could begin before the reduction, which waits
 * for a rank. */
Test(executor_nodes, all_nodes_run_collectives_in_the_order_of_the_calls)
{
	start_nodes(3);
	cr_assert(zero(int, ranks_run(&executor_ranks, join_nodes)));
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
	/* Use the group once before, because its first use has to wait for
	 * other things, too. */
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_unshard)));
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_reshard)));
	actor_begin(&executor_ranks.actors[0], reduce_and_unshard);
	actor_begin(&executor_ranks.actors[2], reduce_and_unshard);
	await_unshard();
	actor_begin(&executor_ranks.actors[1], reduce_and_unshard);
	ranks_end(&executor_ranks);
	for (uint32_t i = 0; i < 3; i++)
		cr_assert(zero(int, executor_ranks.notes[i].code), "%s",
			  executor_ranks.notes[i].sentence);
	cr_assert(zero(int, ranks_run(&executor_ranks, executor_see_whole)));
}

Test(executor_nodes,
     plans_that_differ_between_nodes_are_reported_before_their_use)
{
	start_nodes(2);
	cr_assert(zero(int, ranks_run(&executor_ranks, join_with_other_plan)));
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
	ranks_begin(&executor_ranks, executor_unshard);
	ranks_end(&executor_ranks);
	executor_expect_all_told("the plan of group 'l0'");
}

static int commit_another_step(void)
{
	struct fsdp_work work;
	int r = fsdp_commit(trainer()->comm, 7 + rank_self(), &work);

	return rank_note(r < 0 ? r : fsdp_wait(&work, -1));
}

Test(executor_nodes, steps_that_differ_between_nodes_are_not_committed)
{
	start_nodes(2);
	cr_assert(zero(int, ranks_run(&executor_ranks, join_nodes)));
	ranks_begin(&executor_ranks, commit_another_step);
	ranks_end(&executor_ranks);
	executor_expect_all_told("the step to commit");
	cr_assert(zero(int,
		       fsdp_comms(executor_client, executor_note_comm, NULL)));
	cr_expect(zero(u64, executor_seen.step));
}

/* Unshard and reshard without waiting. Such an unshard is done even if the
 * reshard comes first, because the other node's workers wait for it. */
static int unshard_in_passing(void)
{
	struct fsdp_work work;
	int r = 0;

	for (int i = 0; i < 50 && r == 0; i++) {
		r = fsdp_unshard(trainer()->groups[0], &work);
		if (r == 0)
			r = fsdp_reshard(trainer()->groups[0], 0);
	}
	return rank_note(r);
}

Test(executor_nodes, a_gather_started_on_one_node_is_done_on_all_nodes)
{
	start_nodes(2);
	cr_assert(zero(int, ranks_run(&executor_ranks, join_nodes)));
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
	cr_assert(zero(int, ranks_run(&executor_ranks, unshard_in_passing)));
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
	cr_assert(status_await(executor_client, "gathers", 50));
	executor_must_train();
}

static int unshard_before_the_other(void)
{
	struct fsdp_work work;

	must(fsdp_unshard(trainer()->groups[0], &work) == 0);
	return rank_note(fsdp_wait(&work, 20));
}

Test(executor_nodes, a_gather_that_waits_for_another_node_does_not_blame_memory)
{
	start_nodes(2);
	cr_assert(zero(int, ranks_run(&executor_ranks, join_nodes)));
	cr_assert(zero(int, ranks_run(&executor_ranks, trainer_commit)));
	cr_assert(eq(int,
		     rank_run(&executor_ranks, 0, unshard_before_the_other),
		     -ETIMEDOUT));
	executor_expect_says(0, "it waits for earlier work or for other nodes");
	executor_must_train();
}

/* The rank of the other node never joins. */
Test(executor_nodes, ranks_do_not_wait_for_one_that_dies_while_nccl_is_opened)
{
	start_nodes(2);
	actor_begin(&executor_ranks.actors[0], join_nodes);
	cr_assert(status_await(executor_client, "jobs_running", 1));
	actor_kill(&executor_ranks.actors[0]);
	cr_assert(status_await(executor_client, "jobs_running", 0));
	cr_assert(status_await(executor_client, "comms_running", 0));
}
