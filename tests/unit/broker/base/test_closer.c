/*
 * Tests that descriptors are closed even if a thread for that could not be made
 * at once, and that slow closes get a part of a CPU only.
 */
#include "broker/base/closer.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <fcntl.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define USER 7

#define MS_NS     1000000ull
#define SECOND_NS (1000 * MS_NS)

/* Fakes of system calls for the thread that closes: the first close takes this
 * much CPU time, and the others take none. */
static atomic_ullong first_ns, slept_ns;
static atomic_uint n_readings;

int clock_gettime(clockid_t clock, struct timespec *ret)
{
	unsigned long long ns = 0;

	if (clock != CLOCK_THREAD_CPUTIME_ID)
		return (int)syscall(SYS_clock_gettime, clock, ret);
	if (atomic_fetch_add(&n_readings, 1) % 2 == 1)
		ns = atomic_exchange(&first_ns, 0);
	*ret = (struct timespec){(time_t)(ns / SECOND_NS),
				 (long)(ns % SECOND_NS)};
	return 0;
}

int nanosleep(const struct timespec *time, struct timespec *rest)
{
	(void)rest;
	atomic_fetch_add(&slept_ns,
			 (unsigned long long)time->tv_sec * SECOND_NS +
				 (unsigned long long)time->tv_nsec);
	return 0;
}

static uv_loop_t loop;
static struct closer closer;

static void on_change(void *data, uint32_t uid)
{
	(void)data;
	if (!closer_is_full(&closer, uid))
		uv_stop(&loop);
}

static void setup(void)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, uv_loop_init(&loop)));
	cr_assert(zero(int, closer_init(&closer, &loop, on_change, NULL, &err)),
		  "%s", err.msg);
}

static void teardown(void)
{
	closer_stop(&closer);
	(void)uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&loop)));
	closer_deinit(&closer);
}

TestSuite(closer, .timeout = 300, .init = setup, .fini = teardown);

/* Lets closing begin only after all descriptors were put. */
static void hold_back(void)
{
#ifndef FSDP_TEST_POINTS
	cr_skip_test("built without points");
#endif
	setenv("FSDP_FAIL_AT", "closer.thread:*:EAGAIN", 1);
}

static void put(int n)
{
	for (int i = 0; i < n; i++)
		closer_put(&closer, USER,
			   open("/dev/null", O_RDONLY | O_CLOEXEC));
}

static void close_until_not_full(void)
{
	unsetenv("FSDP_FAIL_AT");
	cr_assert(closer_is_full(&closer, USER));
	/* Keep the loop running, although no other descriptor is sent. */
	uv_ref((uv_handle_t *)&closer.async);
	(void)uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(not(closer_is_full(&closer, USER)));
}

Test(closer, closes_descriptors_later_if_no_thread_can_be_created)
{
	hold_back();
	put(CLOSER_FULL);
	close_until_not_full();
	cr_expect(zero(u64, atomic_load(&slept_ns)));
}

Test(closer, sleeps_after_a_slow_close_before_it_takes_more)
{
	hold_back();
	put(CLOSER_FULL);
	atomic_store(&first_ns, 5 * MS_NS);
	close_until_not_full();
	cr_expect(eq(u64, atomic_load(&slept_ns), 20 * MS_NS));
}

Test(closer, sleeps_for_a_second_at_most)
{
	hold_back();
	put(CLOSER_FULL);
	atomic_store(&first_ns, 60 * SECOND_NS);
	close_until_not_full();
	cr_expect(eq(u64, atomic_load(&slept_ns), SECOND_NS));
}

Test(closer, does_not_sleep_while_many_descriptors_wait)
{
	hold_back();
	put(2 * CLOSER_FULL + 1);
	atomic_store(&first_ns, 5 * MS_NS);
	close_until_not_full();
	cr_expect(zero(u64, atomic_load(&slept_ns)));
}
