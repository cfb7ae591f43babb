/*
 * Tests gathers in place, which ranks on host memory do without the broker.
 * They make no system call. They notice when their run ends, and do not notice
 * when the broker is restarted.
 */
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include <errno.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_CYCLES 1000

/* One parameter is divided unevenly and one is a vector. Both can be used in
 * place. */
static const struct fsdp_param_spec PARAMS[] = {
	{.name = "weight", .spec = {FSDP_F32, 2, {5, 4}}},
	{.name = "bias", .spec = {FSDP_F32, 1, {7}}},
};

static const struct layer LAYERS[] = {
	LAYER("l0", PARAMS),
	LAYER("l1", PARAMS),
	LAYER("cast", PARAMS, .policy = {.param_dtype = FSDP_BF16}),
};
#define N_LAYERS 3

CHECKED_SUITE(direct, crew_setup_supervised, crew_teardown, .timeout = 300);

static const struct crew CREW = {.layers = LAYERS, .n_layers = N_LAYERS};

static void start(uint32_t n, const struct fsdp_comm_options *options)
{
	struct crew crew = CREW;

	if (options)
		crew.options = *options;
	crew_start(n, &crew);
	cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
}

/* This avoids stdio, which a rank under strict seccomp cannot use. */
static int cycle(void)
{
	struct fsdp_param param = {.struct_size = sizeof(param)};
	struct fsdp_group *group = trainer()->groups[0];
	struct fsdp_work work;
	int r = fsdp_unshard(group, &work);

	if (r == 0)
		r = fsdp_wait(&work, -1);
	if (r == 0)
		r = fsdp_param(group, 0, &param);
	if (r == 0)
		r = fsdp_reshard(group, 0);
	return r;
}

/* Strict mode permits only read, write, exit and sigreturn. */
static int cycle_strictly(void)
{
	int r = cycle();

	if (r < 0 || prctl(PR_SET_SECCOMP, SECCOMP_MODE_STRICT) < 0)
		return -EIO;
	for (int i = 0; i < N_CYCLES && r == 0; i++)
		r = cycle();
	syscall(SYS_exit, r == 0 ? 7 : 8);
	return r;
}

Test(direct, gathers_in_place_make_no_system_call)
{
	bool is_ended_by_itself;
	int status;

	start(2, NULL);
	actor_begin(&ranks.actors[0], cycle_strictly);
	status = actor_wait(&ranks.actors[0]);
	is_ended_by_itself = WIFEXITED(status);
	cr_assert(is_ended_by_itself, "signal %d", WTERMSIG(status));
	cr_assert(eq(int, WEXITSTATUS(status), 7));
}

Test(direct, groups_in_place_need_no_order_and_do_not_count_for_the_limiter)
{
	start(2, &(struct fsdp_comm_options){.limit = 1});
	cr_assert(zero(int, rank_run(&ranks, 0, unshard0)));
	cr_assert(zero(int, rank_run(&ranks, 1, unshard1)));
	cr_assert(zero(int, ranks_run(&ranks, unshard2)));
	cr_assert(zero(int, rank_run(&ranks, 0, check0)));
	cr_assert(eq(u64, status_value(client, "unshards"), 1));
}

Test(direct, the_fsdp1_limiter_counts_groups_in_place_as_well)
{
	start(2, &(struct fsdp_comm_options){.limiter = FSDP_LIMITER_FSDP1});
	cr_assert(zero(int, ranks_run(&ranks, unshard0)));
	cr_assert(eq(u64, status_value(client, "unshards"), 1));
}

/* --- what is refused ----------------------------------------------------- */

static int begin_commit(void)
{
	struct trainer *self = trainer();
	struct fsdp_work work;

	return rank_note(fsdp_commit(self->comm, self->step + 1, &work));
}

static int param0(void)
{
	struct fsdp_param param = {.struct_size = sizeof(param)};

	return rank_note(fsdp_param(trainer()->groups[0], 0, &param));
}

static int reshard0_to_2(void)
{
	return rank_note(fsdp_reshard(trainer()->groups[0], 2));
}

static int reshard0_to_3(void)
{
	return rank_note(fsdp_reshard(trainer()->groups[0], 3));
}

Test(direct, an_unshard_before_the_first_commit_is_refused)
{
	crew_start(1, &CREW);
	cr_assert(eq(int, rank_run(&ranks, 0, unshard0), -ENODATA));
	assert_says(0, "group 'l0' has no committed step yet");
	cr_assert(zero(int, rank_run(&ranks, 0, trainer_commit)));
	cr_assert(zero(int, rank_run(&ranks, 0, unshard0)));
}

Test(direct, a_parameter_is_accessible_only_between_wait_and_reshard)
{
	start(2, NULL);
	cr_assert(zero(int, rank_run(&ranks, 0, begin0)));
	cr_assert(eq(int, rank_run(&ranks, 0, param0), -EINVAL));
	cr_assert(zero(int, rank_run(&ranks, 0, unshard0)));
	cr_assert(zero(int, rank_run(&ranks, 0, param0)));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard0)));
	cr_assert(eq(int, rank_run(&ranks, 0, param0), -EINVAL));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard0), -EINVAL));
}

Test(direct, a_commit_is_refused_while_a_group_is_unsharded)
{
	start(2, NULL);
	cr_assert(zero(int, rank_run(&ranks, 0, unshard1)));
	cr_assert(eq(int, rank_run(&ranks, 0, begin_commit), -EBUSY));
	assert_says(0, "has 'l1' unsharded");
	cr_assert(zero(int, rank_run(&ranks, 0, reshard1)));
	cr_assert(zero(int, rank_run(&ranks, 0, begin_commit)));
	cr_assert(eq(int, rank_run(&ranks, 0, begin0), -EBUSY));
}

Test(direct, a_mesh_that_does_not_fit_is_refused)
{
	start(2, NULL);
	cr_assert(zero(int, ranks_run(&ranks, unshard0)));
	cr_assert(eq(int, rank_run(&ranks, 0, reshard0_to_3), -EINVAL));
	assert_says(0, "a mesh of 3 ranks");
	cr_assert(zero(int, ranks_run(&ranks, reshard0_to_2)));
	cr_assert(zero(int, ranks_run(&ranks, unshard0)));
	cr_assert(zero(int, ranks_run(&ranks, check0)));
}

/* --- the end of a run ---------------------------------------------------- */

static int cycle_until_told(void)
{
	int r;

	do
		r = cycle();
	while (r == 0);
	return rank_note(r);
}

/* Ranks that make no system call learn of the death from the state table. */
Test(direct, ranks_that_make_no_request_get_an_error_that_names_the_dead_rank)
{
	start(3, NULL);
	for (uint32_t i = 0; i < 2; i++)
		actor_begin(&ranks.actors[i], cycle_until_told);
	actor_kill(&ranks.actors[2]);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(eq(int, actor_end(&ranks.actors[i]), -ECONNABORTED));
		assert_says(i, "rank 2 (pid ");
		assert_says(i, "died");
	}
}

/* Each new run uses again the words of the state table that ended runs had. */
Test(direct, a_later_run_continues_from_the_last_commit)
{
	for (int i = 0; i < 3; i++) {
		crew_start(2, &CREW);
		if (i == 0)
			cr_assert(zero(int, ranks_run(&ranks, trainer_commit)));
		cr_assert(zero(int, ranks_run(&ranks, unshard0)));
		cr_assert(zero(int, ranks_run(&ranks, check0)));
		cr_assert(zero(int, ranks_run(&ranks, reshard0)));
		actor_kill(&ranks.actors[1]);
		cr_assert(eq(int, rank_run(&ranks, 0, cycle_until_told),
			     -ECONNABORTED));
		ranks_stop(&ranks);
	}
}

/* A broker that was stopped before the rank died cannot notice its death. */
Test(direct, a_death_without_a_broker_is_reported_by_the_next_broker)
{
	start(2, NULL);
	actor_begin(&ranks.actors[0], cycle_until_told);
	cr_assert(zero(int, kill(daemon_broker_pid(&daemon_), SIGSTOP)));
	actor_kill(&ranks.actors[1]);
	daemon_kill_broker(&daemon_);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, "died");
}

/* In this mode unshards need the broker. */
Test(direct, a_run_with_the_fsdp1_limiter_ends_with_the_broker)
{
	start(2, &(struct fsdp_comm_options){.limiter = FSDP_LIMITER_FSDP1});
	for (uint32_t i = 0; i < 2; i++)
		actor_begin(&ranks.actors[i], cycle_until_told);
	daemon_kill_broker(&daemon_);
	for (uint32_t i = 0; i < 2; i++)
		cr_assert(eq(int, actor_end(&ranks.actors[i]), -ECONNABORTED));
}

Test(direct, a_rank_may_leave_while_there_is_no_broker)
{
	start(2, NULL);
	cr_assert(zero(int, ranks_run(&ranks, unshard0)));
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, rank_run(&ranks, 1, crew_leave_comm)));
	actor_kill(&ranks.actors[1]);
	cr_assert(zero(int, rank_run(&ranks, 0, check0)));
	cr_assert(zero(int, rank_run(&ranks, 0, reshard0)));
	cr_assert(zero(int, rank_run(&ranks, 0, unshard1)));
	cr_assert(eq(u64, status_value(client, "comms_failed"), 0));
}
