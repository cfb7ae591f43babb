/*
 * How long iterations of the loop take: work counts, waiting does not.
 */
#include "broker/base/meter.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <time.h>

#define MS 1000000

static uv_loop_t loop;
static struct meter meter;

static void set_up(void)
{
	cr_assert(zero(int, uv_loop_init(&loop)));
	cr_assert(zero(int, meter_init(&meter, &loop, NULL)));
}

static void tear_down(void)
{
	meter_stop(&meter);
	meter_stop(&meter);
	uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&loop)));
}

TestSuite(meter, .init = set_up, .fini = tear_down, .timeout = 20);

static void on_work(uv_timer_t *timer)
{
	const struct timespec work = {.tv_nsec = 20 * MS};

	(void)timer;
	nanosleep(&work, NULL);
}

static void on_nothing(uv_timer_t *timer)
{
	(void)timer;
}

/* One timer, and one round more so that its iteration has an end. */
static void run_timer(uv_timer_cb fn, uint64_t ms)
{
	uv_timer_t timer;

	cr_assert(zero(int, uv_timer_init(&loop, &timer)));
	cr_assert(zero(int, uv_timer_start(&timer, fn, ms, 0)));
	uv_run(&loop, UV_RUN_DEFAULT);
	uv_close((uv_handle_t *)&timer, NULL);
	uv_run(&loop, UV_RUN_NOWAIT);
}

Test(meter, the_longest_iteration_is_kept_until_it_is_reset)
{
	uint64_t longest_ns;

	run_timer(on_nothing, 0); /* the first iteration has no beginning */
	run_timer(on_work, 0);
	longest_ns = meter.longest_ns;
	cr_expect(ge(u64, longest_ns, 20 * MS));
	run_timer(on_nothing, 0);
	cr_expect(ge(u64, meter.longest_ns, longest_ns));
	meter_reset(&meter);
	cr_expect(zero(u64, meter.longest_ns));
	run_timer(on_work, 0);
	cr_expect(ge(u64, meter.longest_ns, 20 * MS));
}

/* Whatever else keeps the machine busy is work. */
Test(meter, waiting_for_events_is_no_iteration)
{
	uint64_t start_ns = uv_hrtime();

	run_timer(on_nothing, 0);
	run_timer(on_nothing, 100);
	cr_expect(le(u64, meter.longest_ns + 90 * MS, uv_hrtime() - start_ns));
}
