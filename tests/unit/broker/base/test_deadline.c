/*
 * Tests the order and removal of deadlines, and that the timer runs only when
 * it must.
 */
#include "broker/base/deadline.h"
#include "tests/lib/check.h"
#include "tests/unit/broker/loop_fixture.h"
#include <stdlib.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#define N_MAX 2000

struct fixture {
	uv_loop_t loop;
	struct deadlines deadlines;
	uint32_t positions[N_MAX];
	uint32_t fired[N_MAX]; /* indices, in order */
	uint32_t n_fired;
	uint32_t victim; /* position of the deadline to remove */
	bool is_adding;
};

static void setup(struct fixture *f)
{
	*f = (struct fixture){0};
	cr_assert(zero(int, uv_loop_init(&f->loop)));
	cr_assert(
		zero(int, deadlines_init(&f->deadlines, &f->loop, NULL, NULL)));
}

static void teardown(struct fixture *f)
{
	deadlines_stop(&f->deadlines);
	uv_run(&f->loop, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&f->loop)));
}

static void on_due(void *data, uint32_t index);

static void add(struct fixture *f, uint32_t index, uint64_t at_ms)
{
	struct deadline deadline = {at_ms, on_due, f, index,
				    &f->positions[index]};

	cr_assert(zero(int, deadlines_add(&f->deadlines, &deadline, NULL)));
}

static void on_due(void *data, uint32_t index)
{
	struct fixture *f = data;

	cr_expect(zero(u32, f->positions[index]));
	f->fired[f->n_fired++] = index;
	if (f->victim)
		deadlines_remove(&f->deadlines, &f->positions[f->victim]);
	if (f->is_adding) {
		f->is_adding = false;
		add(f, index, 1);
	}
}

static bool is_running(const struct fixture *f)
{
	return uv_is_active((const uv_handle_t *)&f->deadlines.timer) ||
	       uv_is_active((const uv_handle_t *)&f->deadlines.more);
}

/* Every entry must know its place, and no child may be before its parent. */
static bool is_heap(const struct deadlines *deadlines)
{
	size_t i;

	for (i = 1; i <= deadlines->n; i++) {
		if (*deadlines->heap[i].position != i)
			return false;
		if (i > 1 &&
		    deadlines->heap[i / 2].at_ms > deadlines->heap[i].at_ms)
			return false;
	}
	return true;
}

Test(deadline, all_due_deadlines_fire_in_the_order_of_their_times)
{
	static struct fixture f;
	uint32_t i;

	setup(&f);
	/* 7919 and 2000 have no common factor, so each time occurs once. */
	for (i = 0; i < N_MAX; i++)
		add(&f, i, 1 + i * 7919 % N_MAX);
	cr_assert(is_heap(&f.deadlines));
	uv_run(&f.loop, UV_RUN_DEFAULT);
	cr_assert(eq(u32, f.n_fired, N_MAX));
	for (i = 0; i < N_MAX; i++)
		cr_assert(eq(u32, f.fired[i] * 7919 % N_MAX, i));
	cr_expect(not(is_running(&f)));
	teardown(&f);
}

Test(deadline, removing_a_deadline_keeps_the_others_in_order)
{
	static struct fixture f;
	uint64_t random = 1;
	uint32_t i, n_left = N_MAX;

	setup(&f);
	for (i = 0; i < N_MAX; i++) {
		random = random * 6364136223846793005u + 1442695040888963407u;
		add(&f, i, 1 + random % 500);
	}
	for (i = 0; i < N_MAX; i += 3) {
		deadlines_remove(&f.deadlines, &f.positions[i]);
		cr_assert(zero(u32, f.positions[i]));
		n_left--;
	}
	cr_expect(is_heap(&f.deadlines));
	deadlines_remove(&f.deadlines, &f.positions[0]);
	uv_run(&f.loop, UV_RUN_DEFAULT);
	cr_expect(eq(u32, f.n_fired, n_left));
	teardown(&f);
}

Test(deadline, the_timer_is_stopped_while_there_is_no_deadline)
{
	static struct fixture f;

	setup(&f);
	cr_expect(not(is_running(&f)));
	add(&f, 1, now_ms() + 1000000);
	cr_expect(is_running(&f));
	deadlines_remove(&f.deadlines, &f.positions[1]);
	cr_expect(not(is_running(&f)));
	teardown(&f);
}

Test(deadline, a_deadline_in_the_future_does_not_fire_early)
{
	static struct fixture f;
	uint64_t at = now_ms() + 20;

	setup(&f);
	add(&f, 1, at);
	add(&f, 2, at + 1000000);
	while (f.n_fired == 0) {
		cr_assert(is_running(&f));
		loop_step(&f.loop);
	}
	cr_expect(ge(u64, now_ms(), at));
	cr_expect(eq(u32, f.n_fired, 1));
	cr_expect(is_running(&f));
	teardown(&f);
	cr_expect(zero(u32, f.positions[2]));
}

Test(deadline, a_callback_may_remove_other_deadlines_and_add_its_own_again)
{
	static struct fixture f;

	setup(&f);
	f.victim = 2;
	f.is_adding = true;
	add(&f, 1, 1);
	add(&f, 2, 2);
	add(&f, 3, 3);
	uv_run(&f.loop, UV_RUN_DEFAULT);
	cr_assert(eq(u32, f.n_fired, 3));
	cr_expect(eq(u32, f.fired[0], 1));
	cr_expect(eq(u32, f.fired[1], 1));
	cr_expect(eq(u32, f.fired[2], 3));
	teardown(&f);
}

/* --- many at once -------------------------------------------------------- */

static uint32_t n_slow, n_slow_before_io;

static void on_slow(void *data, uint32_t index)
{
	const struct timespec work = {.tv_nsec = 2000000};

	(void)data;
	(void)index;
	nanosleep(&work, NULL);
	n_slow++;
}

static void on_io(uv_poll_t *poll, int status, int events)
{
	(void)status;
	(void)events;
	n_slow_before_io = n_slow;
	uv_close((uv_handle_t *)poll, NULL);
}

Test(deadline, other_events_are_served_while_many_deadlines_are_due)
{
	int fd = eventfd(1, EFD_CLOEXEC);
	struct fixture f;
	uv_poll_t poll;

	setup(&f);
	cr_assert(zero(int, uv_poll_init(&f.loop, &poll, fd)));
	cr_assert(zero(int, uv_poll_start(&poll, UV_READABLE, on_io)));
	for (uint32_t i = 0; i < 8; i++) {
		struct deadline deadline = {1, on_slow, &f, i, &f.positions[i]};

		cr_assert(zero(int,
			       deadlines_add(&f.deadlines, &deadline, NULL)));
	}
	uv_run(&f.loop, UV_RUN_DEFAULT);
	cr_expect(lt(u32, n_slow_before_io, 8));
	cr_expect(eq(u32, n_slow, 8), "none is forgotten");
	close(fd);
	teardown(&f);
}
