#include "shm/bell.h"
#include "shm/liveness.h"
#include "tests/lib/check.h"
#include <sys/wait.h>
#include <unistd.h>

#define MS_NS INT64_C(1000000)

static struct liveness liveness;
static pid_t pids[2]; /* of this process, and of a child that has exited */

static void set_up(void)
{
	siginfo_t info;

	liveness = (struct liveness){0};
	pids[0] = getpid();
	pids[1] = fork();
	if (pids[1] == 0)
		_exit(0);
	cr_assert(zero(int,
		       waitid(P_PID, (id_t)pids[1], &info, WEXITED | WNOWAIT)));
}

static void tear_down(void)
{
	cr_assert(eq(int, waitpid(pids[1], NULL, 0), pids[1]));
}

TestSuite(liveness, .init = set_up, .fini = tear_down, .timeout = 60);

/* The next look in a wait that has lasted for this time must be after `ms`. */
static void check_next(int64_t waited_ms, int64_t ms)
{
	int64_t before_ns = bell_recent_ns(), next_ns, slack_ns;

	next_ns = liveness_next_ns(before_ns - waited_ms * MS_NS, INT64_MAX);
	slack_ns = (bell_recent_ns() - before_ns) * 2;
	cr_expect(ge(i64, next_ns, before_ns + ms * MS_NS));
	cr_expect(le(i64, next_ns, before_ns + ms * MS_NS + slack_ns));
}

Test(liveness, looks_are_rarer_in_a_long_wait)
{
	check_next(0, 20);
	check_next(160, 20);
	check_next(800, 100);
	check_next(1600, 200);
	check_next(60000, 200);
}

Test(liveness, the_next_look_is_not_after_the_end_of_the_wait)
{
	int64_t end_ns = bell_now_ns() + MS_NS;

	cr_expect(eq(i64, liveness_next_ns(end_ns - MS_NS, end_ns), end_ns));
}

static uint32_t pid_of(const void *data, uint32_t number)
{
	(void)data;
	return (uint32_t)pids[number];
}

static uint32_t find(int64_t waited_ms, uint64_t processes)
{
	return liveness_find(&liveness, bell_now_ns() - waited_ms * MS_NS,
			     processes, pid_of, NULL);
}

Test(liveness, only_a_process_that_is_ending_is_found)
{
	cr_expect(eq(u32, find(1000, 1), LIVENESS_NONE));
	liveness = (struct liveness){0};
	cr_expect(eq(u32, find(1000, 3), 1));
}

/* On a busy machine the wait may have lasted for long when it looks. */
Test(liveness, a_wait_that_has_just_begun_does_not_look)
{
	int64_t since_ns;
	uint32_t found;

	do {
		liveness = (struct liveness){0};
		since_ns = bell_now_ns();
		found = liveness_find(&liveness, since_ns, 2, pid_of, NULL);
	} while (bell_now_ns() - since_ns >= 20 * MS_NS);
	cr_expect(eq(u32, found, LIVENESS_NONE));
}

Test(liveness, a_pause_puts_off_the_next_look)
{
	int64_t before_ns = bell_now_ns();

	cr_expect(eq(u32, find(1000, 2), 1));
	cr_expect(ge(i64, atomic_load(&liveness.next_ns),
		     before_ns + 10 * MS_NS));
	liveness_pause(&liveness);
	cr_expect(ge(i64, atomic_load(&liveness.next_ns),
		     before_ns + 1000 * MS_NS));
	atomic_store(&liveness.next_ns, INT64_MAX);
	cr_expect(eq(u32, find(1000, 2), LIVENESS_NONE));
}
