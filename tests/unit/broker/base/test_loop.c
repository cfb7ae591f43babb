/*
 * Tests work that the loop defers.
 */
#include "broker/base/loop.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <time.h>

#define MS 1000000

struct job {
	struct deferred handler;
	struct loop *loop;
	struct job *wakes; /* woken by the first run of this job; may be NULL */
	long lost_ns;      /* time that each run takes without using the CPU */
	unsigned n_runs, n_wanted,
		n_before; /* runs of other jobs before its first run */
};

static struct loop loop;
static unsigned n_runs;

static bool run(void *data)
{
	struct job *job = data;
	const struct timespec lost = {.tv_nsec = job->lost_ns};

	nanosleep(&lost, NULL);
	if (job->n_runs == 0)
		job->n_before = n_runs;
	n_runs++;
	job->n_runs++;
	if (job->wakes)
		loop_defer(job->loop, &job->wakes->handler);
	job->wakes = NULL;
	return job->n_runs < job->n_wanted;
}

static void add(struct job *job, unsigned n_wanted)
{
	*job = (struct job){.handler = {.run = run, .data = job},
			    .loop = &loop,
			    .n_wanted = n_wanted};
	loop_add(&loop, &job->handler);
}

static void setup(void)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, loop_open(&loop, &err)), "%s", err.msg);
}

/* The loop ends when all handles are closed. */
static void teardown(void)
{
	loop_stop(&loop);
	(void)uv_run(&loop.uv, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&loop.uv)));
}

TestSuite(loop, .timeout = 300, .init = setup, .fini = teardown);

Test(loop, runs_a_deferred_handler_until_it_has_no_more_work)
{
	struct job job, other;

	add(&job, 3);
	add(&other, 1);
	loop_defer(&loop, &job.handler);
	(void)uv_run(&loop.uv, UV_RUN_DEFAULT);
	cr_expect(eq(uint, job.n_runs, 3));
	cr_expect(zero(uint, other.n_runs));
}

Test(loop, runs_in_the_same_round_a_handler_that_an_earlier_handler_defers)
{
	struct job first, second;

	add(&first, 2);
	add(&second, 1);
	first.wakes = &second;
	loop_defer(&loop, &first.handler);
	(void)uv_run(&loop.uv, UV_RUN_DEFAULT);
	cr_expect(eq(uint, first.n_runs, 2));
	cr_expect(eq(uint, second.n_runs, 1));
	cr_expect(eq(uint, second.n_before, 1));
}

Test(loop, starts_no_handler_while_it_is_stopping)
{
	struct job job;

	add(&job, 1);
	loop.is_stopping = true;
	loop_defer(&loop, &job.handler);
	(void)uv_run(&loop.uv, UV_RUN_DEFAULT);
	cr_expect(zero(uint, job.n_runs));
}

/* The state after the first round, before the loop blocks. */
static bool is_paused, has_more_now;

static void on_prepare(uv_prepare_t *prepare)
{
	is_paused = uv_is_active((uv_handle_t *)&loop.pause);
	has_more_now = uv_is_active((uv_handle_t *)&loop.idle);
	uv_close((uv_handle_t *)prepare, NULL);
}

static void run_all(struct job *job)
{
	uv_prepare_t prepare;

	cr_assert(zero(int, uv_prepare_init(&loop.uv, &prepare)));
	cr_assert(zero(int, uv_prepare_start(&prepare, on_prepare)));
	loop_defer(&loop, &job->handler);
	(void)uv_run(&loop.uv, UV_RUN_DEFAULT);
}

/* Act as if another process had the CPU meanwhile. */
Test(loop, pauses_long_work_that_has_lost_the_cpu)
{
	struct job job;

	add(&job, 3);
	job.handler.is_long = true;
	job.lost_ns = 20 * MS;
	run_all(&job);
	cr_expect(is_paused);
	cr_expect(not(has_more_now));
	cr_expect(eq(uint, job.n_runs, 3));
}

Test(loop, continues_other_work_while_long_work_is_paused)
{
	struct job job, other;

	add(&job, 2);
	job.handler.is_long = true;
	job.lost_ns = 20 * MS;
	add(&other, 2);
	job.wakes = &other;
	run_all(&job);
	cr_expect(is_paused);
	cr_expect(has_more_now);
	cr_expect(eq(uint, job.n_runs, 2));
	cr_expect(eq(uint, other.n_runs, 2));
}

Test(loop, does_not_pause_work_that_is_not_long)
{
	struct job job;

	add(&job, 2);
	job.lost_ns = 20 * MS;
	run_all(&job);
	cr_expect(not(is_paused));
	cr_expect(has_more_now);
	cr_expect(eq(uint, job.n_runs, 2));
}
