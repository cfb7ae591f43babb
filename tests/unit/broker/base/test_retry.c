/*
 * Tests retries: when the next call comes.
 */
#include "broker/base/retry.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/loop_fixture.h"
#include <errno.h>
#include <stdlib.h>

#define FIRST_MS 2
#define LAST_MS  8

static uv_loop_t loop;
static struct deadlines deadlines;
static struct retry retry;
static uint32_t n_calls;

static void on_call(void *data, uint32_t index)
{
	cr_expect(eq(ptr, data, &n_calls));
	cr_expect(zero(u32, index));
	n_calls++;
}

static void setup(void)
{
	cr_assert(zero(int, uv_loop_init(&loop)));
	cr_assert(zero(int, deadlines_init(&deadlines, &loop, NULL, NULL)));
	retry = (struct retry){
		.deadlines = &deadlines,
		.fn = on_call,
		.data = &n_calls,
	};
}

static void teardown(void)
{
	retry_stop(&retry);
	deadlines_stop(&deadlines);
	uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&loop)));
}

TestSuite(retry, .init = setup, .fini = teardown, .timeout = 60);

static int plan(void)
{
	return retry_plan(&retry, FIRST_MS, LAST_MS, NULL);
}

/* Plans a call, which must be the only one and not come before `wait_ms`. */
static void expect_wait(uint64_t wait_ms)
{
	uint64_t at_ms = now_ms() + wait_ms;
	uint32_t n_before = n_calls;

	cr_assert(zero(int, plan()));
	cr_assert(eq(u64, deadlines.n, 1));
	cr_expect(ge(u64, deadlines.heap[1].at_ms, at_ms));
	cr_expect(le(u64, deadlines.heap[1].at_ms, now_ms() + wait_ms));
	while (n_calls == n_before)
		loop_step(&loop);
	cr_expect(zero(u64, deadlines.n));
	cr_expect(eq(u32, n_calls, n_before + 1));
}

Test(retry, the_intervals_double_up_to_the_limit)
{
	const uint64_t waits[] = {2, 4, 8, 8};

	for (int i = 0; i < 4; i++)
		expect_wait(waits[i]);
}

Test(retry, a_planned_call_stays_as_it_is)
{
	uint64_t at_ms;

	cr_assert(zero(int, plan()));
	at_ms = deadlines.heap[1].at_ms;
	cr_assert(zero(int, plan()));
	cr_expect(eq(u64, deadlines.n, 1));
	cr_expect(eq(u64, deadlines.heap[1].at_ms, at_ms));
	retry_stop(&retry);
	expect_wait(4);
}

Test(retry, a_reset_begins_with_the_first_interval_again)
{
	expect_wait(2);
	expect_wait(4);
	retry_reset(&retry);
	expect_wait(2);
}

Test(retry, a_stopped_one_makes_no_call)
{
	cr_assert(zero(int, plan()));
	retry_stop(&retry);
	retry_stop(&retry);
	uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(zero(u32, n_calls));
}

#ifdef FSDP_TEST_POINTS
Test(retry, a_lack_of_memory_is_reported)
{
	setenv("FSDP_FAIL_AT", "deadline.malloc:1:12", 1); /* ENOMEM */
	cr_assert(eq(int, plan(), -ENOMEM));
	cr_expect(zero(u32, retry.position));
	expect_wait(4);
}
#endif
