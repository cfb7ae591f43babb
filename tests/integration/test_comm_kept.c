/*
 * Tests the committed groups that outlive a run in which ranks leave, or in
 * which ranks or the broker die. The groups are kept until their time to live
 * is over or they are removed.
 *
 * All groups are in place, so no worker is needed.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/leaks.h"
#include "tests/lib/trainer.h"
#include <errno.h>
#include <string.h>
#include <sys/stat.h>

#define N_RANKS 3

static const struct fsdp_param_spec PLAIN[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {7}}},
};

/* This is PLAIN with one other dimension. */
static const struct fsdp_param_spec OTHER[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {8}}},
};

static const struct layer LAYERS[] = {
	{.name = "l0", .params = PLAIN, .n = 2},
	{.name = "l1", .params = PLAIN, .n = 1},
};
static const struct layer CHANGED[] = {
	{.name = "l0", .params = OTHER, .n = 2},
};

static struct chaos chaos;
static struct ranks ranks;
static struct fsdp_client *client; /* of the test */
static struct figures before;

static void setup(void)
{
	chaos_start(&chaos, NULL);
	client = chaos_connect(&chaos);
	figures_read(client, &before);
}

static void teardown(void)
{
	ranks_stop(&ranks);
	fsdp_close(client);
	chaos_stop(&chaos);
}

CHECKED_SUITE(comm_kept, setup, teardown, .timeout = 300);

static void set_crew(const struct layer *layers, size_t n, uint64_t ttl_ms)
{
	crew_set(&(struct crew){
		.daemon = &chaos.daemon,
		.comm = "team/job",
		.options = {.ttl_ms = ttl_ms},
		.layers = layers,
		.n_layers = n,
	});
}

static uint32_t world;

static void start(uint32_t n)
{
	world = n;
	set_crew(LAYERS, 2, 0);
	ranks_start(&ranks, n);
}

/* Check that only the test's own session is left. */
static void assert_as_before(void)
{
	before.epoch = before.pid = FIGURE_ANY;
	before.grants = before.chunks = before.chunk_bytes = FIGURE_ANY;
	cr_assert(figures_await(client, &before));
	cr_assert(status_await(client, "comms", 0));
	cr_assert(status_await(client, "comms_running", 0));
}

/* Check that both versions of two groups are kept, and that no process holds a
 * tensor. */
static void assert_only_kept(void)
{
	struct figures kept = before;

	kept.epoch = kept.pid = FIGURE_ANY;
	kept.grants = kept.chunks = kept.chunk_bytes = FIGURE_ANY;
	kept.bytes_live = FIGURE_ANY;
	/* On devices each rank has its own memory. */
	kept.slots += are_on_devices() ? 4 * world : 4;
	kept.blocks += are_on_devices() ? 4 * world : 4;
	cr_assert(figures_await(client, &kept));
	cr_assert(status_await(client, "comms_running", 0));
	cr_assert(eq(u64, status_value(client, "comms"), 1));
	cr_assert(eq(u64, status_value(client, "groups"), 2));
}

static struct fsdp_comm_entry seen;

static int note_comm(const struct fsdp_comm_entry *entry, void *data)
{
	uint32_t *n = data;

	seen = *entry;
	++*n;
	return 0;
}

static void look(void)
{
	uint32_t n = 0;

	must(fsdp_comms(client, note_comm, &n) == 0);
	cr_assert(eq(u32, n, 1));
}

static int leave(void)
{
	return trainer_leave();
}

static int use_both(void)
{
	for (size_t layer = 0; layer < 2; layer++) {
		int r = trainer_unshard(layer);

		if (r == 0 && !trainer_sees_whole(layer))
			r = -EIO;
		if (r == 0)
			r = trainer_reshard(layer);
		if (r < 0)
			return r;
	}
	return 0;
}

static void train(int n_steps)
{
	for (int i = 0; i < n_steps; i++)
		cr_assert(eq(int, ranks_run(&ranks, trainer_commit), 0));
}

/* Join, continue from `step`, commit one more, and leave. */
static void assert_goes_on(uint64_t step)
{
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	look();
	cr_assert(eq(int, seen.state, FSDP_COMM_RUNNING));
	cr_assert(eq(u64, seen.step, step));
	cr_assert(eq(int, ranks_run(&ranks, use_both), 0));
	train(1);
	cr_assert(eq(int, ranks_run(&ranks, use_both), 0));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
}

/* --- runs ---------------------------------------------------------------- */

Test(comm_kept, a_later_run_continues_from_the_last_committed_step)
{
	start(2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	train(3);
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_only_kept();
	look();
	cr_assert(eq(int, seen.state, FSDP_COMM_KEPT));
	cr_assert(eq(u32, seen.n_groups, 2));
	cr_assert(gt(u64, seen.ttl_left_ms, 0));
	assert_goes_on(3);
	assert_goes_on(4);
	assert_only_kept();
}

Test(comm_kept, groups_that_were_never_committed_are_kept_without_a_step)
{
	start(2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_only_kept();
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, use_both), -ENODATA));
}

Test(comm_kept, groups_must_be_registered_as_they_were_kept)
{
	start(2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	ranks_stop(&ranks);
	set_crew(CHANGED, 1, 0);
	ranks_start(&ranks, 2);
	ranks_begin(&ranks, trainer_join);
	ranks_end(&ranks);
	for (uint32_t rank = 0; rank < 2; rank++) {
		cr_assert(eq(int, ranks.notes[rank].code, -EINVAL));
		assert_says(rank, "parameter \"bias\" has the shape [8] here, "
				  "but [7] on the group that is kept");
	}
	ranks_stop(&ranks);
	assert_only_kept();
	start(3);
	cr_assert(eq(int, rank_run(&ranks, 0, trainer_join), -EINVAL));
	assert_says(0, "has groups of 2 ranks in shards of 2, not of 3");
}

Test(comm_kept, a_kept_communicator_is_removed_by_name)
{
	cr_assert(eq(int, fsdp_comm_remove(client, "team/job"), -ENOENT));
	start(2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	cr_assert(eq(int, fsdp_comm_remove(client, "team/job"), -EBUSY));
	cr_assert(ne(ptr, strstr(fsdp_error(), "rank 0 (pid "), NULL));
	train(1);
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	cr_assert(eq(int, fsdp_comm_remove(client, "team/job"), 0));
	assert_as_before();
}

Test(comm_kept, a_communicator_without_ranks_ends_when_its_time_to_live_is_over)
{
	set_crew(LAYERS, 2, 20);
	ranks_start(&ranks, 2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	train(1);
	nap_ms(50); /* no time passes while a rank is in it */
	cr_assert(eq(u64, status_value(client, "comms"), 1));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_as_before();
}

/* --- users --------------------------------------------------------------- */

#define ALICE 40001
#define BOB   40002

static int join_alone(void)
{
	struct fsdp_connect_options options = {
		.path = daemon_socket(&chaos.daemon)};
	struct trainer *self = trainer();

	if (!self->client && fsdp_connect(&options, &self->client) < 0)
		return -EIO;
	return fsdp_comm_join(self->client, "team/job", 1, 0, NULL,
			      &self->comm);
}

static int register_alone(void)
{
	struct trainer *self = trainer();

	return fsdp_group_register(self->comm, "l0", PLAIN, 2, NULL,
				   &self->groups[0]);
}

static int remove_it(void)
{
	return fsdp_comm_remove(trainer()->client, "team/job");
}

static int note_name(const struct fsdp_comm_entry *entry, void *data)
{
	(void)entry;
	++*(int *)data;
	return 0;
}

static int count_comms(void)
{
	int n = 0;

	return fsdp_comms(trainer()->client, note_name, &n) < 0 ? -EIO : n;
}

Test(comm_kept, another_user_can_neither_join_see_nor_remove_a_communicator)
{
	const struct identity alice = {ALICE, ALICE, 0}, bob = {BOB, BOB, 0};
	struct actor first, second;

	if (!actor_may_be_others())
		cr_skip_test("two users take root");
	must(chmod(chaos.daemon.dir, 0755) == 0);
	actor_start(&first, &alice);
	actor_start(&second, &bob);
	cr_assert(eq(int, actor_run(&first, join_alone), 0));
	cr_assert(eq(int, actor_run(&first, register_alone), 0));
	cr_assert(eq(int, actor_run(&second, join_alone), -EACCES));
	cr_assert(eq(int, actor_run(&second, remove_it), -EPERM));
	cr_assert(eq(int, actor_run(&second, count_comms), 0));
	cr_assert(eq(int, actor_run(&first, count_comms), 1));
	actor_kill(&first);
	cr_assert(status_await(client, "comms_running", 0));
	cr_assert(eq(int, actor_run(&second, join_alone), -EACCES));
	cr_assert(eq(int, actor_run(&second, remove_it), -EPERM));
	actor_kill(&second);
	cr_assert(eq(int, fsdp_comm_remove(client, "team/job"), 0));
	assert_as_before();
}

/* --- death of a rank ----------------------------------------------------- */

/* Kill the last rank. All others run `waiting`, which waits for that rank, and
 * must be told. */
static void kill_last(actor_fn *waiting)
{
	uint32_t last = ranks.n - 1;
	char name[64];

	snprintf(name, sizeof(name), "rank %u (pid %d, ", last,
		 (int)ranks.actors[last].pid);
	for (uint32_t rank = 0; rank < last; rank++)
		actor_begin(&ranks.actors[rank], waiting);
	cr_assert(status_await(client, "waiters", last));
	actor_kill(&ranks.actors[last]);
	ranks_end(&ranks);
	for (uint32_t rank = 0; rank < last; rank++) {
		cr_assert(eq(int, ranks.notes[rank].code, -ECONNABORTED), "%s",
			  ranks.notes[rank].sentence);
		assert_says(rank, name);
		/* In its sandbox the broker cannot read how a process ended for
		 * which the parent has not waited yet. */
		assert_says(rank, "of communicator 'team/job' has died");
	}
}

static int commit_and_wait(void)
{
	return trainer_commit();
}

static int register_third(void)
{
	struct fsdp_group *group;

	return rank_note(fsdp_group_register(trainer()->comm, "l2", PLAIN, 2,
					     NULL, &group));
}

Test(comm_kept, ranks_that_join_get_an_error_after_a_death)
{
	/* Rank 2 never joins. Rank 3 is killed after it has joined. */
	start(4);
	actor_kill(&ranks.actors[2]);
	actor_begin(&ranks.actors[3], trainer_join);
	cr_assert(status_await(client, "waiters", 1));
	actor_begin(&ranks.actors[0], trainer_join);
	actor_begin(&ranks.actors[1], trainer_join);
	cr_assert(status_await(client, "waiters", 3));
	actor_kill(&ranks.actors[3]);
	ranks_end(&ranks);
	for (uint32_t rank = 0; rank < 2; rank++) {
		cr_assert(eq(int, ranks.notes[rank].code, -ECONNABORTED));
		assert_says(rank, "rank 3 (pid ");
		assert_says(rank, "has died");
	}
	ranks_stop(&ranks);
	assert_as_before();
}

Test(comm_kept, ranks_that_register_get_an_error_after_a_death)
{
	start(N_RANKS);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	train(1);
	kill_last(register_third);
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_only_kept();
}

Test(comm_kept,
     ranks_that_commit_get_an_error_after_a_death_and_keep_the_last_step)
{
	start(N_RANKS);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	train(2);
	kill_last(commit_and_wait);
	ranks_stop(&ranks);
	assert_only_kept();
	ranks_start(&ranks, N_RANKS);
	assert_goes_on(2);
	assert_only_kept();
	cr_assert(eq(int, fsdp_comm_remove(client, "team/job"), 0));
	assert_as_before();
}

/* Join a new run while the handle of the failed one still exists. */
static int join_beside(void)
{
	struct fsdp_shard shard = {.struct_size = sizeof(shard)};
	void *next;
	int r;

	must(fsdp_shard(trainer()->groups[0], 0, &shard) == 0);
	next = shard.next;
	r = trainer_commit(); /* this commit fails */
	if (r != -ECONNABORTED)
		return r < 0 ? r : -EIO;
	r = trainer_join();
	if (r < 0)
		return r;
	/* Values written through the earlier handle are not used. */
	must(fsdp_shard(trainer()->groups[0], 0, &shard) == 0);
	return shard.next == next ? -EIO : trainer_commit();
}

Test(comm_kept, survivors_form_a_new_run_while_the_failed_one_still_exists)
{
	start(2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	train(1);
	actor_kill(&ranks.actors[1]);
	cr_assert(status_await(client, "comms_failed", 1));
	/* The new actor gets the number of the rank that was started last,
	 * which is 1. */
	actor_start(&ranks.actors[1], NULL);
	actor_begin(&ranks.actors[0], join_beside);
	cr_assert(eq(int, rank_run(&ranks, 1, trainer_join), 0));
	cr_assert(eq(int, rank_run(&ranks, 1, trainer_commit), 0));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), 0));
	cr_assert(eq(int, ranks_run(&ranks, use_both), 0));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_only_kept();
}

/* --- death of the broker ------------------------------------------------- */

static int must_be_told(void)
{
	int r = use_both();

	if (runs_go_on())
		return r;
	return r == -ECONNABORTED ? 0 : r < 0 ? r : -EIO;
}

Test(comm_kept, committed_steps_survive_a_kill_of_the_broker)
{
	start(2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	train(2);
	daemon_kill_broker(&chaos.daemon);
	cr_assert(eq(int, ranks_run(&ranks, must_be_told), 0));
	if (!runs_go_on())
		assert_says(0, "the broker was restarted");
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_only_kept();
	assert_goes_on(2);
	cr_assert(eq(int, fsdp_comm_remove(client, "team/job"), 0));
	assert_as_before();
}

static int commit_or_be_told(void)
{
	int r = trainer_commit();

	return r == -ECONNABORTED && !runs_go_on() ? 0 : r;
}

/* Let the broker die at `point` in the third commit. If the run goes on, the
 * ranks repeat the requests that were not done. */
static void die_in_commit(const char *point, uint64_t step)
{
	start(2);
	cr_assert(eq(int, ranks_run(&ranks, trainer_join), 0));
	train(2);
	plan_death(chaos.plan, point, 1);
	cr_assert(eq(int, ranks_run(&ranks, commit_or_be_told), 0));
	cr_assert(plan_is_done(chaos.plan));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_only_kept();
	assert_goes_on(runs_go_on() ? 3 : step);
	cr_assert(eq(int, fsdp_comm_remove(client, "team/job"), 0));
	assert_as_before();
}

Test(comm_kept, a_commit_before_which_the_broker_died_is_not_made)
{
	if (!chaos_has_points())
		cr_skip_test("needs FSDP_TEST_POINTS");
	die_in_commit("comm.committing", 2);
}

Test(comm_kept, a_commit_after_which_the_broker_died_is_made)
{
	if (!chaos_has_points())
		cr_skip_test("needs FSDP_TEST_POINTS");
	die_in_commit("comm.committed", 3);
}

/* Join again each time the rank is told that the run has ended, as trainers
 * do. */
static int join_until_done(void)
{
	int r;

	for (;;) {
		r = trainer_join();
		if (r == 0)
			r = trainer_commit();
		if (r != -ECONNABORTED)
			return r;
		trainer_leave();
	}
}

/* Let the broker die in a first join. After that the communicator is complete
 * or does not exist, and the next join succeeds. */
static void die_in_join(const char *point, unsigned int n)
{
	start(2);
	plan_death(chaos.plan, point, n);
	cr_assert(eq(int, ranks_run(&ranks, join_until_done), 0));
	cr_assert(plan_is_done(chaos.plan));
	cr_assert(eq(int, ranks_run(&ranks, use_both), 0));
	cr_assert(eq(int, ranks_run(&ranks, leave), 0));
	assert_only_kept();
	cr_assert(eq(int, fsdp_comm_remove(client, "team/job"), 0));
	assert_as_before();
}

Test(comm_kept, a_broker_may_die_as_ranks_join_and_register)
{
	static const struct {
		const char *point;
		unsigned int n;
	} deaths[] = {
		{"comm.joined", 1},          {"comm.joined", 2},
		{"verb.comm_join.done", 1},  {"verb.comm_join.committed", 1},
		{"verb.comm_join.done", 2},  {"storage.made", 1},
		{"storage.made", 2},         {"group.stored", 1},
		{"group.stored", 2},         {"verb.group.done", 1},
		{"verb.group.committed", 1}, {"verb.group.committed", 3},
	};

	if (!chaos_has_points())
		cr_skip_test("needs FSDP_TEST_POINTS");
	for (size_t i = 0; i < sizeof(deaths) / sizeof(*deaths); i++) {
		die_in_join(deaths[i].point, deaths[i].n);
		/* The supervisor does not restart a broker that dies too
		 * often. */
		teardown();
		setup();
	}
}
