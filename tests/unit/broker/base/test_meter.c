/*
 * Tests the measured length of iterations of the loop. Work counts, and waiting
 * does not.
 */
#include "broker/base/meter.h"
#include "tests/lib/check.h"
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

TestSuite(meter, .init = set_up, .fini = tear_down, .timeout = 300);

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

/* Run one timer. One more round of the loop ends the timer's iteration. */
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

	/* the beginning of the first iteration is not measured */
	run_timer(on_nothing, 0);
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

/* The load of other programs on the machine counts as work, so no exact time is
 * expected. */
Test(meter, waiting_for_events_is_not_part_of_an_iteration)
{
	uint64_t start_ns = uv_hrtime();

	run_timer(on_nothing, 0);
	run_timer(on_nothing, 100);
	cr_expect(le(u64, meter.longest_ns + 90 * MS, uv_hrtime() - start_ns));
}

/* --- tasks --------------------------------------------------------------- */

static void sleep_ms(long ms)
{
	const struct timespec time = {.tv_nsec = ms * MS};

	nanosleep(&time, NULL);
}

static void on_pieces(uv_timer_t *timer)
{
	(void)timer;
	meter_begin(&meter);
	sleep_ms(20);
	meter_request(&meter, MESSAGE_PING);
	meter_begin(&meter);
	sleep_ms(10);
	(void)meter_end(&meter, METER_CHORES);
	sleep_ms(5);
}

Test(meter, the_time_of_each_part_is_added_to_its_task)
{
	uint64_t start_ns = uv_hrtime(), sum_ns = meter_waited(&meter);

	run_timer(on_nothing, 0);
	run_timer(on_pieces, 30);
	cr_expect(ge(u64, meter.task_ns[METER_REQUESTS], 20 * MS));
	cr_expect(ge(u64, meter.task_ns[METER_CHORES], 10 * MS));
	cr_expect(ge(u64, meter.task_ns[METER_OTHER], 5 * MS));
	cr_expect(zero(u64, meter.task_ns[METER_TIMERS]));
	cr_expect(ge(u64, meter_waited(&meter), 25 * MS));
	for (int i = 0; i < METER_N; i++)
		sum_ns += meter.task_ns[i];
	sum_ns += meter_waited(&meter);
	cr_expect(le(u64, sum_ns, uv_hrtime() - start_ns + MS));
}

Test(meter, requests_are_counted_by_kind)
{
	run_timer(on_pieces, 0);
	meter_request(&meter, MESSAGE_MAX + 1);
	cr_expect(eq(u64, histogram_n(&meter.requests[MESSAGE_PING]), 1));
	cr_expect(ge(u64, meter.requests[MESSAGE_PING].sum_ns, 20 * MS));
	cr_expect(eq(u64, histogram_n(&meter.requests[0]), 1), "unknown");
	cr_expect(zero(u64, histogram_n(&meter.requests[MESSAGE_GET])));
}

Test(meter, a_parked_request_counts_from_parking_to_the_reply)
{
	uint64_t since_ns = meter_now(&meter);

	sleep_ms(10);
	meter_parked(&meter, MESSAGE_GET, since_ns);
	cr_expect(eq(u64, histogram_n(&meter.parked[MESSAGE_GET]), 1));
	cr_expect(ge(u64, meter.parked[MESSAGE_GET].sum_ns, 9 * MS));
	cr_expect(zero(u64, histogram_n(&meter.requests[MESSAGE_GET])));
}

Test(meter, every_iteration_is_counted)
{
	uint64_t before;

	run_timer(on_nothing, 0);
	before = histogram_n(&meter.iterations);
	run_timer(on_work, 0);
	cr_expect(gt(u64, histogram_n(&meter.iterations), before));
	cr_expect(ge(u64, meter.iterations.sum_ns, 20 * MS));
}
