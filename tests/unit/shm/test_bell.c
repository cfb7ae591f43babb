/*
 * Tests what ends a wait on a bell, and that a ring wakes a sleeper.
 */
#include "shm/bell.h"
#include "tests/lib/check.h"
#include <pthread.h>
#include <sched.h>

static struct bell bell;
static atomic_bool is_met, is_over, is_beside;

static bool load(const void *word)
{
	return atomic_load((atomic_bool *)word);
}

static bool look_met(const void *data)
{
	(void)data;
	return load(&is_met);
}

static bool look_over(const void *data)
{
	(void)data;
	return load(&is_over);
}

static bool look_beside(const void *data)
{
	(void)data;
	return load(&is_beside);
}

static const struct bell_wait WAIT = {look_met, look_over, look_beside, NULL};

static void *wait_long(void *data)
{
	enum bell_outcome *outcome = data;

	do
		*outcome = bell_wait(&bell, &WAIT, INT64_MAX);
	while (*outcome == BELL_AGAIN);
	return NULL;
}

/* Wait until the other thread sleeps, or is about to, so that a ring from now
 * on must wake it. */
static void await_sleeper(void)
{
	while (atomic_load(&bell.sleepers) == 0)
		sched_yield();
}

Test(bell, a_condition_that_is_met_wins_over_the_deadline)
{
	atomic_store(&is_met, true);
	cr_expect(eq(int, bell_wait(&bell, &WAIT, 0), BELL_MET));
}

Test(bell, a_wait_ends_at_its_deadline)
{
	cr_expect(eq(int, bell_wait(&bell, &WAIT, 0), BELL_AGAIN));
	cr_expect(eq(int, bell_wait(&bell, &WAIT, bell_now_ns() + 1000000),
		     BELL_AGAIN));
	cr_expect(zero(u32, atomic_load(&bell.sleepers)));
}

Test(bell, a_wait_for_a_run_that_is_over_returns_at_once)
{
	atomic_store(&is_over, true);
	cr_expect(eq(int, bell_wait(&bell, &WAIT, INT64_MAX), BELL_OVER));
}

Test(bell, a_ring_without_sleepers_makes_no_system_call)
{
	bell_ring(&bell);
	cr_expect(zero(u32, atomic_load(&bell.word)));
}

Test(bell, a_ring_wakes_all_sleepers, .timeout = 300)
{
	enum bell_outcome outcomes[3];
	pthread_t threads[3];

	for (int i = 0; i < 3; i++)
		cr_assert(zero(int, pthread_create(&threads[i], NULL, wait_long,
						   &outcomes[i])));
	while (atomic_load(&bell.sleepers) < 3)
		sched_yield();
	atomic_store(&is_met, true);
	bell_ring(&bell);
	for (int i = 0; i < 3; i++) {
		cr_assert(zero(int, pthread_join(threads[i], NULL)));
		cr_expect(eq(int, outcomes[i], BELL_MET));
	}
}

Test(bell, the_end_wakes_sleepers, .timeout = 300)
{
	enum bell_outcome outcome;
	pthread_t thread;

	atomic_store(&is_beside, true);
	cr_assert(
		zero(int, pthread_create(&thread, NULL, wait_long, &outcome)));
	await_sleeper();
	atomic_store(&is_over, true);
	bell_ring_always(&bell);
	cr_assert(zero(int, pthread_join(thread, NULL)));
	cr_expect(eq(int, outcome, BELL_OVER));
}

Test(bell, a_recent_time_follows_the_present_one, .timeout = 60)
{
	int64_t before_ns = bell_now_ns(), recent_ns = bell_recent_ns();

	cr_expect(le(i64, recent_ns, bell_now_ns()));
	while (bell_recent_ns() < before_ns)
		sched_yield();
}
