#include "shm/bell.h"
#include "proto/failpoint.h"
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* The time of spinning is about the time of sleeping and waking up. For longer
 * waits the extra cost of sleeping is small. */
#define SPIN_NS INT64_C(50000)
/* Number of checks between two reads of the clock. */
#define LOOKS 16
/* If a waiter has yielded this often and still shares its CPU with the process
 * that it waits for, the wait will be long. */
#define MAX_YIELDS 16

#define SECOND_NS INT64_C(1000000000)

static int64_t read_clock(clockid_t clock)
{
	struct timespec now;

	(void)clock_gettime(clock, &now);
	return now.tv_sec * SECOND_NS + now.tv_nsec;
}

int64_t bell_now_ns(void)
{
	return read_clock(CLOCK_MONOTONIC);
}

int64_t bell_recent_ns(void)
{
	return read_clock(CLOCK_MONOTONIC_COARSE);
}

/* Tells the CPU that this loop waits. */
static inline void relax(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

static bool look(const struct bell_wait *wait, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (wait->is_met(wait->data))
			return true;
		relax();
	}
	return false;
}

/* Returns BELL_AGAIN if the wait is longer than spinning is useful. The first
 * looks need no clock, and most waits end with them. */
static enum bell_outcome spin(const struct bell_wait *wait, int64_t until_ns)
{
	int64_t now_ns, end_ns = 0;
	uint32_t n_yields = 0;

	failpoint("bell.spins");
	do {
		bool is_beside = wait->is_beside(wait->data);

		if (look(wait, is_beside ? 1 : LOOKS))
			return BELL_MET;
		if (wait->is_over(wait->data))
			return BELL_OVER;
		if (is_beside && n_yields++ == MAX_YIELDS)
			return BELL_AGAIN;
		if (is_beside)
			(void)sched_yield();
		now_ns = bell_now_ns();
		if (end_ns == 0)
			end_ns = now_ns + SPIN_NS;
	} while (now_ns < end_ns && now_ns < until_ns);
	return BELL_AGAIN;
}

/* Sleeps until the word changes, a wake-up or a signal comes, or the time has
 * expired. The futex is not private, because several processes map the word. */
static void sleep_on(struct bell *bell, uint32_t seen, int64_t ns)
{
	struct timespec time = {.tv_sec = ns / SECOND_NS,
				.tv_nsec = ns % SECOND_NS};

	(void)syscall(SYS_futex, &bell->word, FUTEX_WAIT, seen, &time, NULL, 0);
}

static enum bell_outcome look_both(const struct bell_wait *wait)
{
	if (wait->is_met(wait->data))
		return BELL_MET;
	return wait->is_over(wait->data) ? BELL_OVER : BELL_AGAIN;
}

/* The word must be read before the checks, so that a ring between them prevents
 * the sleep. */
enum bell_outcome bell_sleep(struct bell *bell, const struct bell_wait *wait,
			     int64_t until_ns)
{
	uint32_t seen = atomic_load_explicit(&bell->word, memory_order_acquire);
	enum bell_outcome outcome;
	int64_t left_ns = until_ns - bell_now_ns();

	atomic_fetch_add_explicit(&bell->sleepers, 1, memory_order_seq_cst);
	failpoint("bell.counted");
	outcome = look_both(wait);
	if (outcome == BELL_AGAIN && left_ns > 0) {
		sleep_on(bell, seen, left_ns);
		outcome = look_both(wait);
	}
	/* relaxed: a ringer that still counts this waiter only makes an
	 * unnecessary wake-up */
	atomic_fetch_sub_explicit(&bell->sleepers, 1, memory_order_relaxed);
	return outcome;
}

enum bell_outcome bell_wait(struct bell *bell, const struct bell_wait *wait,
			    int64_t until_ns)
{
	enum bell_outcome outcome = spin(wait, until_ns);

	if (outcome == BELL_AGAIN)
		outcome = bell_sleep(bell, wait, until_ns);
	return outcome;
}

static void wake(struct bell *bell, int n)
{
	atomic_fetch_add_explicit(&bell->word, 1, memory_order_seq_cst);
	failpoint("bell.bumped");
	(void)syscall(SYS_futex, &bell->word, FUTEX_WAKE, n, NULL, NULL, 0);
}

static bool has_sleepers(const struct bell *bell)
{
	return atomic_load_explicit(&bell->sleepers, memory_order_seq_cst) > 0;
}

void bell_ring_always(struct bell *bell)
{
	wake(bell, INT_MAX);
}

void bell_ring(struct bell *bell)
{
	if (has_sleepers(bell))
		wake(bell, INT_MAX);
}

void bell_ring_one(struct bell *bell)
{
	if (has_sleepers(bell))
		wake(bell, 1);
}
