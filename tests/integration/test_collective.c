/*
 * Tests collectives on ordinary memory in which something fails. No rank waits
 * for ever when another one dies, leaves, is late or makes a different call.
 * test_collective_values.c checks the results of collectives that succeed.
 */
#include "shm/board.h"
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

CHECKED_SUITE(collective, crew_setup_supervised, crew_teardown, .timeout = 300);

static const struct crew DEFAULTS = {.n_layers = 0};
static const struct crew SHORT_TIMEOUT = {.options = {.timeout_ms = 5000}};

static struct fsdp_comm *comm(void)
{
	return trainer()->comm;
}

/* --- calls that differ --------------------------------------------------- */

static float numbers[64], results[4 * 64];

static int reduce_64(void)
{
	return rank_note(fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, numbers,
					 results, 64));
}

static int differ_in_kind(void)
{
	if (rank_self() == 1)
		return rank_note(
			fsdp_broadcast(comm(), FSDP_F32, numbers, 64, 0));
	return reduce_64();
}

static int differ_in_dtype(void)
{
	return rank_note(fsdp_all_reduce(comm(),
					 rank_self() == 1 ? FSDP_I32 : FSDP_F32,
					 FSDP_SUM, numbers, results, 64));
}

static int differ_in_reduction(void)
{
	return rank_note(fsdp_all_reduce(comm(), FSDP_F32,
					 rank_self() == 1 ? FSDP_MAX : FSDP_SUM,
					 numbers, results, 64));
}

static int differ_in_root(void)
{
	return rank_note(fsdp_broadcast(comm(), FSDP_F32, numbers, 64,
					rank_self() == 1 ? 1 : 0));
}

static int differ_in_size(void)
{
	return rank_note(fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, numbers,
					 results, rank_self() == 1 ? 63 : 64));
}

/* Rank 1 has as many elements for each rank as the others have for all
 * ranks. */
static int differ_in_size_thrice(void)
{
	static float large[3 * 16384];

	return rank_note(fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, large,
					 large,
					 rank_self() == 1 ? 3 * 16384 : 16384));
}

/* Neither of these calls makes a rank read from the other. */
static int gather_or_broadcast(void)
{
	if (rank_self() == 0)
		return rank_note(
			fsdp_broadcast(comm(), FSDP_F32, numbers, 1, 0));
	return rank_note(fsdp_gather_to(comm(), FSDP_F32, numbers, 1, NULL, 0));
}

static const struct difference {
	actor_fn *fn;
	const char *says;
} differences[] = {
	{differ_in_kind, "calls a broadcast (f32, rank 0)"},
	{differ_in_dtype, "calls an all-reduce (sum of i32)"},
	{differ_in_reduction, "calls an all-reduce (max of f32)"},
	{differ_in_root, "calls a broadcast (f32, rank 1)"},
	{differ_in_size, "gives rank"},
	{differ_in_size_thrice, "calls a large all-reduce (sum of f32)"},
	{gather_or_broadcast, "calls a gather (f32, rank 0)"},
};

Test(collective, all_ranks_get_an_error_that_names_the_differing_calls)
{
	for (size_t i = 0; i < sizeof(differences) / sizeof(*differences);
	     i++) {
		crew_start(3, &DEFAULTS);
		ranks_begin(&ranks, differences[i].fn);
		ranks_end(&ranks);
		for (uint32_t rank = 0; rank < 3; rank++) {
			cr_assert(
				eq(int, ranks.notes[rank].code, -ECONNABORTED),
				"%zu: rank %u", i, rank);
			assert_says(rank, differences[i].says);
		}
		cr_assert(
			eq(int, rank_run(&ranks, 0, reduce_64), -ECONNABORTED));
		ranks_stop(&ranks);
	}
}

static int refuse_badly(void)
{
	struct fsdp_part parts[2] = {{numbers, 1}, {NULL, 1}};
	const void *in[2] = {numbers, NULL};
	char *odd = (char *)results + 1;

	must(fsdp_broadcast(NULL, FSDP_F32, numbers, 1, 0) == -EINVAL);
	must(fsdp_broadcast(comm(), 99, numbers, 1, 0) == -EINVAL);
	must(fsdp_broadcast(comm(), FSDP_F32, numbers, 1, 2) == -EINVAL);
	must(fsdp_broadcast(comm(), FSDP_F32, NULL, 1, 0) == -EINVAL);
	must(fsdp_broadcast(comm(), FSDP_F32, numbers, UINT64_MAX / 4 + 2, 0) ==
	     -EINVAL);
	must(fsdp_all_reduce(comm(), FSDP_F32, 99, numbers, results, 1) ==
	     -EINVAL);
	must(fsdp_all_reduce(comm(), FSDP_F32, FSDP_BAND, numbers, results,
			     1) == -EINVAL);
	must(fsdp_all_reduce(comm(), FSDP_F8_E4M3, FSDP_SUM, numbers, results,
			     1) == -EINVAL);
	must(fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, numbers, odd, 1) ==
	     -EINVAL);
	must(fsdp_all_gather(comm(), FSDP_F32, numbers, 1, parts) == -EINVAL);
	must(fsdp_all_to_all(comm(), FSDP_F32, NULL, parts) == -EINVAL);
	must(fsdp_fold(FSDP_F32, FSDP_SUM, in, 0, results, 1) == -EINVAL);
	must(fsdp_fold(FSDP_F32, FSDP_SUM, in, 65, results, 1) == -EINVAL);
	must(fsdp_fold(FSDP_F32, FSDP_SUM, NULL, 2, results, 1) == -EINVAL);
	must(fsdp_fold(FSDP_F32, FSDP_SUM, in, 2, results, 1) == -EINVAL);
	must(strstr(fsdp_error(), "`in[1]`"));
	must(fsdp_fold(FSDP_F32, FSDP_SUM, in, 1, odd, 1) == -EINVAL);
	must(strstr(fsdp_error(), "`out`"));
	must(fsdp_fold(FSDP_F32, FSDP_BAND, in, 1, results, 1) == -EINVAL);
	must(fsdp_fold(FSDP_F32, FSDP_SUM, in, 1, results, UINT64_MAX / 4) ==
	     -EINVAL);
	/* The refused calls changed nothing. */
	return reduce_64();
}

Test(collective, a_bad_argument_is_refused_without_effect)
{
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, refuse_badly)));
}

/* --- late and missing ranks ---------------------------------------------- */

Test(collective, a_waiting_rank_gets_an_error_that_names_the_dead_rank)
{
	crew_start(3, &DEFAULTS);
	for (uint32_t i = 0; i < 2; i++)
		actor_begin(&ranks.actors[i], reduce_64);
	actor_kill(&ranks.actors[2]);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(eq(int, actor_end(&ranks.actors[i]), -ECONNABORTED));
		assert_says(i, "rank 2 (pid ");
		assert_says(i, "died");
	}
}

/* Make large calls of several rounds in all ranks. */
static int make_large_calls_until_told(void)
{
	static char in[3 * 1024 * 1024], out[sizeof(in)];
	uint64_t n = sizeof(in) / sizeof(float);
	int r;

	do
		r = fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, in, out, n);
	while (r == 0);
	return rank_note(r);
}

static void kill_at_each_point(const char *held_at)
{
	static const char *const points[] = {"exchange.filled", "box.put",
					     "exchange.copied", "box.taken",
					     "bell.counted",    "bell.bumped"};
	uint32_t n_held = 0;

	if (!chaos_has_points())
		cr_skip_test("built without points");
	for (size_t i = 0; i < sizeof(points) / sizeof(*points); i++) {
		for (unsigned int n = 1; n <= (held_at ? 1 : 7); n += 6) {
			crew_start_mortal(3, &DEFAULTS);
			n_held += expect_death_is_told(
				&(struct death){points[i], n, held_at},
				make_large_calls_until_told);
		}
	}
	cr_assert(!held_at || n_held > 0);
}

Test(collective, a_sleeping_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point(NULL);
}

Test(collective, a_spinning_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point(SPINNING);
}

Test(collective, a_copying_rank_gets_an_error_after_a_death_at_any_failpoint)
{
	kill_at_each_point("exchange.copied");
}

Test(collective, all_ranks_get_an_error_that_names_the_late_rank)
{
	crew_start(2, &SHORT_TIMEOUT);
	cr_assert(eq(int, rank_run(&ranks, 0, reduce_64), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, ") has not started an all-reduce within 5000 ms");
	cr_assert(eq(int, rank_run(&ranks, 1, reduce_64), -ECONNABORTED));
	assert_says(1, ") has not started an all-reduce within 5000 ms");
}

Test(collective, a_waiting_rank_gets_an_error_when_another_leaves)
{
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[0], reduce_64);
	cr_assert(zero(int, rank_run(&ranks, 1, crew_leave_comm)));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, ") has left");
}

/* If runs cannot go on, the rank that waits is told instead. */
Test(collective, a_waiting_rank_does_not_notice_a_restart_of_the_broker)
{
	int told = runs_go_on() ? 0 : -ECONNABORTED;

	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[0], reduce_64);
	daemon_kill_broker(&daemon_);
	cr_assert(zero(int, fsdp_ping(client)));
	cr_assert(eq(int, rank_run(&ranks, 1, reduce_64), told));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), told));
}

static int is_tired;

static int ask_whether_tired(void *unused)
{
	(void)unused;
	return is_tired;
}

static struct fsdp_comm *join_other(struct fsdp_client *of)
{
	struct fsdp_comm *other;

	must(fsdp_comm_join(of, "other", 2, rank_self(), NULL, &other) == 0);
	return other;
}

static int reduce_other(struct fsdp_comm *other)
{
	return rank_note(fsdp_all_reduce(other, FSDP_F32, FSDP_SUM, numbers,
					 results, 64));
}

/* Use a connection that is interrupted at once. */
static int reduce_interrupted(void)
{
	const struct fsdp_connect_options options = {
		.path = daemon_.socket, .interrupted = ask_whether_tired};
	struct fsdp_client *impatient;
	struct fsdp_comm *other;
	int r;

	must(fsdp_connect(&options, &impatient) == 0);
	other = join_other(impatient);
	is_tired = 1;
	r = reduce_other(other);
	must(fsdp_close(impatient) == 0);
	return r;
}

/* Begin after the other rank has given up. */
static int reduce_too_late(void)
{
	struct fsdp_comm *other = join_other(trainer()->client);

	while (fsdp_barrier(other, 0) == -ETIMEDOUT)
		sched_yield();
	return reduce_other(other);
}

static int interrupt_one(void)
{
	return rank_self() == 0 ? reduce_interrupted() : reduce_too_late();
}

Test(collective, an_interrupt_ends_the_run_with_an_error_for_all_ranks)
{
	crew_start(2, &DEFAULTS);
	ranks_begin(&ranks, interrupt_one);
	ranks_end(&ranks);
	cr_assert(eq(int, ranks.notes[0].code, -EINTR));
	cr_assert(eq(int, ranks.notes[1].code, -ECONNABORTED));
	assert_says(1, "rank 0 (pid ");
	assert_says(1, ") was interrupted in an all-reduce");
}

static struct fsdp_comm *doomed;

static int join_impatiently(void)
{
	const struct fsdp_connect_options options = {
		.path = daemon_.socket, .interrupted = ask_whether_tired};
	struct fsdp_client *impatient;

	must(fsdp_connect(&options, &impatient) == 0);
	doomed = join_other(impatient);
	return rank_note(fsdp_barrier(doomed, -1));
}

static int reduce_doomed(void)
{
	return reduce_other(doomed);
}

static int reduce_less(void)
{
	is_tired = 1;
	return rank_note(fsdp_all_reduce(doomed, FSDP_F32, FSDP_SUM, numbers,
					 results, 32));
}

static int meet_doomed(void)
{
	return rank_note(fsdp_barrier(doomed, 0));
}

/* Rank 1 finds the difference while the broker cannot be told. */
Test(collective, a_difference_unknown_to_the_broker_ends_the_communicator)
{
	pid_t broker = daemon_broker_pid(&daemon_);

	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, join_impatiently)));
	actor_begin(&ranks.actors[0], reduce_doomed);
	ranks_await_still(&ranks, 1);
	cr_assert(zero(int, kill(broker, SIGSTOP)));
	cr_expect(eq(int, rank_run(&ranks, 1, reduce_less), -ECONNABORTED));
	cr_expect(eq(int, rank_run(&ranks, 1, meet_doomed), -ECONNABORTED));
	cr_assert(zero(int, kill(broker, SIGCONT)));
}

/* --- a hostile rank ------------------------------------------------------ */

/* Write random words over the board while the other rank uses it. */
static int scribble(void)
{
	uint64_t seed = choose_seed("FSDP_TEST_COLLECTIVE_SEED");
	struct chance chance = {seed};
	size_t size;
	volatile uint64_t *board = crew_board(&size);

	fprintf(stderr, "seed %llu\n", (unsigned long long)seed);
	for (int i = 0; i < 200000; i++) {
		uint32_t at = draw(&chance, (uint32_t)(size / 8));
		uint64_t bits = draw(&chance, UINT32_MAX);

		bits = bits << 32 | draw(&chance, UINT32_MAX);
		board[at] = bits >> draw(&chance, 64);
	}
	memset((void *)board, 0xa5, size);
	return 0;
}

static int send_large_until_told(void)
{
	static char out[700 * 1024], in[sizeof(out)];
	struct fsdp_transfer *sent, *received;
	int r;

	do {
		r = fsdp_send(comm(), FSDP_U8, out, sizeof(out), 0, 1, &sent);
		if (r == 0)
			r = fsdp_receive(comm(), FSDP_U8, in, sizeof(in), 0, 1,
					 &received);
		if (r == 0)
			r = fsdp_transfer_wait(received, -1, NULL);
		if (r == 0)
			r = fsdp_transfer_wait(sent, -1, NULL);
	} while (r == 0);
	return rank_note(r);
}

Test(collective, a_rank_that_overwrites_mail_affects_only_its_own_run)
{
	crew_start(2, &SHORT_TIMEOUT);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[1], send_large_until_told);
	cr_assert(zero(int, rank_run(&ranks, 0, scribble)));
	cr_assert(eq(int, actor_end(&ranks.actors[1]), -ECONNABORTED));
	ranks_stop(&ranks);
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
}

Test(collective, a_rank_that_overwrites_the_board_affects_only_its_own_run)
{
	crew_start(2, &SHORT_TIMEOUT);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[1], make_large_calls_until_told);
	cr_assert(zero(int, rank_run(&ranks, 0, scribble)));
	cr_assert(eq(int, actor_end(&ranks.actors[1]), -ECONNABORTED));
	cr_assert(zero(int, fsdp_ping(client)));
	ranks_stop(&ranks);
	crew_start(2, &DEFAULTS);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
}

/* Write to the board that rank 0 has a petabyte for the next call of rank 1,
 * and that all of it has been put there already. */
static int pretend_a_petabyte(void)
{
	const uint32_t ahead = 1 << 30;
	size_t size;
	struct board_page *page = crew_board(&size);
	struct box *boxes = (void *)(page + 1);
	uint32_t round = atomic_load(&boxes[0].put) + 1;
	struct box_cell *cell = &boxes[0].cells[round % BOX_SLOTS];

	while (atomic_load(&boxes[1].put) != round)
		(void)sched_yield();
	memcpy(cell, &boxes[1].cells[round % BOX_SLOTS], sizeof(*cell));
	atomic_store(&cell->size, UINT64_C(1) << 50);
	atomic_store(&boxes[0].taken, round + ahead);
	atomic_store(&boxes[0].put, round + ahead);
	return 0;
}

Test(collective, the_error_names_a_rank_that_makes_too_many_rounds)
{
	crew_start(2, &SHORT_TIMEOUT);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[1], reduce_64);
	cr_assert(zero(int, rank_run(&ranks, 0, pretend_a_petabyte)));
	cr_assert(eq(int, actor_end(&ranks.actors[1]), -ECONNABORTED));
	assert_says(1, "rank 0 (pid ");
	assert_says(1,
		    "has not finished an all-reduce of 1125899906842624 bytes");
}

/* --- memory -------------------------------------------------------------- */

static int come_to_barrier(void)
{
	return rank_note(fsdp_barrier(comm(), -1));
}

Test(collective, a_call_that_a_quota_refuses_can_be_repeated)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {15 << 20}};
	struct fsdp_tensor *hog;

	crew_use_little_memory(1); /* not enough for 2 ranks */
	must(fsdp_alloc(client, &spec, 1, NULL, -1, &hog) == 0);
	crew_start(2, &DEFAULTS);
	cr_assert(eq(int, rank_run(&ranks, 0, reduce_64), -EDQUOT));
	cr_expect(strstr(sentence(0), "'test' work together: uid ") &&
			  strstr(sentence(0), "release some, or have "),
		  "%s", sentence(0));
	cr_assert(eq(int, rank_run(&ranks, 1, come_to_barrier), -EDQUOT));
	fsdp_free(hog);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	cr_assert(zero(int, ranks_run(&ranks, come_to_barrier)));
}
