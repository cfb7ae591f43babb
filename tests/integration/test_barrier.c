/*
 * Tests barriers. No rank passes one before all have arrived, and no rank waits
 * for ever when another one dies, leaves or is late.
 */
#include "shm/board.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include "tests/lib/ending.h"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define N_ROUNDS 300

static const struct fsdp_param_spec PARAMS[] = {
	{.name = "weight", .spec = {FSDP_F32, 1, {7}}},
};
static const struct layer LAYERS[] = {{.name = "l0", .params = PARAMS, .n = 1}};

static const struct crew DEFAULTS = {.layers = LAYERS, .n_layers = 1};
static const struct crew SHORT_TIMEOUT = {
	.layers = LAYERS, .n_layers = 1, .options = {.timeout_ms = 5000}};

static atomic_uint *n_arrived; /* shared */

static void setup(void)
{
	crew_setup_supervised();
	n_arrived = shared_memory(sizeof(*n_arrived));
}

static void teardown(void)
{
	munmap(n_arrived, sizeof(*n_arrived));
	crew_teardown();
}

CHECKED_SUITE(barrier, setup, teardown, .timeout = 300);

static int meet(void)
{
	return rank_note(fsdp_barrier(trainer()->comm, -1));
}

static int look(void)
{
	return rank_note(fsdp_barrier(trainer()->comm, 0));
}

static int meet_within_the_longest_time(void)
{
	return rank_note(fsdp_barrier(trainer()->comm, INT32_MAX));
}

static int meet_until_told(void)
{
	int r;

	do
		r = fsdp_barrier(trainer()->comm, -1);
	while (r == 0);
	return rank_note(r);
}

/* --- meeting ------------------------------------------------------------- */

static int meet_often(void)
{
	for (unsigned int i = 1; i <= N_ROUNDS; i++) {
		int r;

		if (i % 8 == rank_self())
			sched_yield();
		atomic_fetch_add_explicit(n_arrived, 1, memory_order_relaxed);
		r = fsdp_barrier(trainer()->comm, -1);
		if (r < 0)
			return rank_note(r);
		if (atomic_load_explicit(n_arrived, memory_order_relaxed) <
		    i * rank_world())
			return -EIO;
		r = fsdp_barrier(trainer()->comm, -1);
		if (r < 0)
			return rank_note(r);
	}
	return 0;
}

Test(barrier, no_rank_passes_before_all_have_arrived)
{
	crew_start(4, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, meet_often)));
	cr_assert(eq(u32, atomic_load(n_arrived), 4 * N_ROUNDS));
}

Test(barrier, a_barrier_that_timed_out_can_be_waited_for_again)
{
	crew_start(3, &DEFAULTS);
	for (int i = 0; i < 2; i++) {
		cr_assert(eq(int, rank_run(&ranks, 0, look), -ETIMEDOUT));
		assert_says(0, "), like 1 other rank, has not reached");
	}
	cr_assert(eq(int, rank_run(&ranks, 1, look), -ETIMEDOUT));
	cr_assert(zero(int, rank_run(&ranks, 2, look)));
	cr_assert(zero(int, rank_run(&ranks, 1, look)));
	cr_assert(zero(int, rank_run(&ranks, 0, look)));
	cr_assert(eq(int, rank_run(&ranks, 0, look), -ETIMEDOUT));
}

/* Let any system call except exit kill the process. Strict mode would also
 * forbid reading the CPU's clock, which the waits do. */
static bool forbid_calls(void)
{
	struct sock_filter lines[] = {
		BPF_STMT(BPF_LD | BPF_W | BPF_ABS,
			 offsetof(struct seccomp_data, nr)),
		BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_exit, 1, 0),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
		BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
	};
	const struct sock_fprog filter = {4, lines};

	return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
	       prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &filter) == 0;
}

static int meet_strictly(void)
{
	int r = fsdp_barrier(trainer()->comm, -1);

	if (r < 0 || !forbid_calls())
		return -EIO;
	for (int i = 0; i < N_ROUNDS && r == 0; i++)
		r = fsdp_barrier(trainer()->comm, -1);
	syscall(SYS_exit, r == 0 ? 7 : 8);
	return r;
}

Test(barrier, a_rank_that_need_not_sleep_makes_no_system_call)
{
	bool is_ended_by_itself;
	int status;

	crew_start(1, &DEFAULTS);
	actor_begin(&ranks.actors[0], meet_strictly);
	status = actor_wait(&ranks.actors[0]);
	is_ended_by_itself = WIFEXITED(status);
	cr_assert(is_ended_by_itself, "signal %d", WTERMSIG(status));
	cr_assert(eq(int, WEXITSTATUS(status), 7));
}

/* --- late and missing ranks ---------------------------------------------- */

static void begin_and_sleep(uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		actor_begin(&ranks.actors[i], meet);
	ranks_await_still(&ranks, n);
}

Test(barrier, a_sleeping_rank_gets_an_error_that_names_the_dead_rank)
{
	crew_start(3, &DEFAULTS);
	begin_and_sleep(2);
	actor_kill(&ranks.actors[2]);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(eq(int, actor_end(&ranks.actors[i]), -ECONNABORTED));
		assert_says(i, "rank 2 (pid ");
		assert_says(i, "died");
	}
	cr_assert(eq(int, rank_run(&ranks, 0, meet), -ECONNABORTED));
}

Test(barrier,
     a_sleeping_rank_gets_the_error_before_the_kernel_reports_the_death)
{
	pid_t thread;

	crew_start(3, &DEFAULTS);
	thread = rank_run(&ranks, 2, ending_thread);
	begin_and_sleep(2);
	ending_begin(ranks.actors[2].pid, thread);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(eq(int, actor_end(&ranks.actors[i]), -ECONNABORTED));
		assert_says(i, "rank 2 (pid ");
		assert_says(i, "died");
	}
	cr_assert(zero(u64, status_value(client, "dead_sessions")));
	ending_end(thread);
	actor_kill(&ranks.actors[2]);
}

/* The points are: the rank has arrived, but has not woken any rank; the rank is
 * counted as a sleeper; the rank is about to wake the others. */
Test(barrier, a_rank_that_dies_at_any_failpoint_leaves_no_rank_waiting)
{
	static const char *const points[] = {"board.arrived", "bell.counted",
					     "bell.bumped"};

	if (!chaos_has_points())
		cr_skip_test("built without points");
	for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
		crew_start_mortal(3, &DEFAULTS);
		(void)expect_death_is_told(&(struct death){points[i], 2, NULL},
					   meet_until_told);
	}
}

Test(barrier, all_ranks_get_an_error_that_names_the_late_rank)
{
	crew_start(2, &SHORT_TIMEOUT);
	cr_assert(eq(int, rank_run(&ranks, 0, meet_within_the_longest_time),
		     -ECONNABORTED));
	assert_says(0, ") has not reached a barrier within 5000 ms");
	cr_assert(eq(int, rank_run(&ranks, 1, meet), -ECONNABORTED));
	assert_says(1, ") has not reached a barrier within 5000 ms");
}

Test(barrier, a_sleeping_rank_gets_an_error_when_another_leaves)
{
	crew_start(2, &DEFAULTS);
	/* Each rank maps the board at its first barrier. */
	ranks_begin(&ranks, meet);
	ranks_end(&ranks);
	begin_and_sleep(1);
	cr_assert(zero(int, rank_run(&ranks, 1, crew_leave_comm)));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, ") left before it reached a barrier");
}

Test(barrier, a_sleeping_rank_does_not_notice_a_restart_of_the_broker)
{
	crew_start(2, &DEFAULTS);
	begin_and_sleep(1);
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, fsdp_ping(client)));
	cr_assert(zero(int, rank_run(&ranks, 1, meet)));
	cr_assert(zero(int, actor_end(&ranks.actors[0])));
}

/* --- a hostile rank ------------------------------------------------------ */

static pid_t *ending_pid; /* shared */

static int blame_rank_2(void)
{
	struct board_page *board;
	size_t size;

	must(fsdp_barrier(trainer()->comm, -1) == 0);
	board = crew_board(&size);
	board->names[2].pid = (uint32_t)*ending_pid;
	return 0;
}

static int count_looks(const struct fsdp_histogram *histogram, void *data)
{
	if (histogram->kind == FSDP_HISTOGRAM_REQUEST &&
	    strcmp(histogram->name, "comm_look") == 0)
		*(uint64_t *)data = histogram->n;
	return 0;
}

static void await_look(void)
{
	uint64_t n = 0;

	while (n == 0) {
		sched_yield();
		cr_assert(zero(int, fsdp_histograms(client, count_looks, &n)));
	}
}

Test(barrier, a_live_rank_is_not_reported_dead)
{
	struct actor other = {.fd = -1};
	pid_t thread;

	ending_pid = shared_memory(sizeof(*ending_pid));
	crew_start(3, &DEFAULTS);
	actor_start(&other, NULL);
	thread = actor_run(&other, ending_thread);
	ending_begin(other.pid, thread);
	*ending_pid = other.pid;
	actor_begin(&ranks.actors[1], meet);
	actor_begin(&ranks.actors[2], meet);
	cr_assert(zero(int, rank_run(&ranks, 0, blame_rank_2)));
	for (int i = 1; i < 3; i++)
		cr_assert(zero(int, actor_end(&ranks.actors[i])));
	begin_and_sleep(2);
	await_look();
	cr_assert(zero(int, rank_run(&ranks, 2, meet)));
	for (int i = 0; i < 2; i++)
		cr_assert(zero(int, actor_end(&ranks.actors[i])));
	ending_end(thread);
	actor_kill(&other);
	munmap(ending_pid, sizeof(*ending_pid));
}

static int scribble(void)
{
	size_t size;
	void *board;

	must(fsdp_barrier(trainer()->comm, -1) == 0);
	board = crew_board(&size);
	memset(board, 0xa5, size);
	return 0;
}

static int meet_shortly(void)
{
	(void)fsdp_barrier(trainer()->comm, 100);
	return 0;
}

Test(barrier, a_rank_that_overwrites_the_board_affects_only_its_own_run)
{
	crew_start(2, &SHORT_TIMEOUT);
	actor_begin(&ranks.actors[1], meet);
	cr_assert(zero(int, rank_run(&ranks, 0, scribble)));
	/* The rank passes the barrier, or fails because of the bytes on the
	 * board. */
	(void)actor_end(&ranks.actors[1]);
	cr_assert(zero(int, rank_run(&ranks, 1, meet_shortly)));
	actor_kill(&ranks.actors[0]);
	cr_assert(eq(int, rank_run(&ranks, 1, meet_until_told), -ECONNABORTED));
	cr_assert(zero(int, fsdp_ping(client)));
	ranks_stop(&ranks);
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, meet)));
}
