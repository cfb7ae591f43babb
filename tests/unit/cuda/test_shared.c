/*
 * Tests objects that are opened once: which thread opens one, which threads
 * wait, and which thread closes it.
 */
#include "cuda/shared.h"
#include "tests/unit/cuda/cuda_fixture.h"
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>

struct thing {
	struct shared shared;
	int key;
	int value; /* set by opening */
};

/* Opening and closing have these effects for keys 1 to 9. */
static struct {
	_Atomic int n_opened, n_closed;
	_Atomic bool is_open, is_failing;
	_Atomic bool is_slow_to_open, is_slow_to_close;
	sem_t begun, go; /* used if opening or closing is slow */
} of[10];

static int open_thing(struct shared *shared, struct error *err)
{
	struct thing *thing = (struct thing *)shared;
	int key = thing->key;
	bool is_failing;

	MUST(!of[key].is_open);
	of[key].n_opened++;
	is_failing = of[key].is_failing;
	if (of[key].is_slow_to_open) {
		sem_post(&of[key].begun);
		gate_pass(&of[key].go);
	}
	if (is_failing)
		return error_set(err, -EIO, "it fails");
	of[key].is_open = true;
	thing->value = key * 100;
	return 0;
}

static void close_thing(struct shared *shared)
{
	int key = ((struct thing *)shared)->key;

	MUST(of[key].is_open);
	if (of[key].is_slow_to_close) {
		sem_post(&of[key].begun);
		gate_pass(&of[key].go);
	}
	of[key].is_open = false;
	of[key].n_closed++;
}

static bool is_same(const struct shared *a, const struct shared *b)
{
	return ((const struct thing *)a)->key == ((const struct thing *)b)->key;
}

static const struct shared_kind kind = {
	.size = sizeof(struct thing),
	.is_same = is_same,
	.open = open_thing,
	.close = close_thing,
};
static struct shared_list list = SHARED_LIST_INIT(&kind);

static void setup(void)
{
	gpu_open();
	for (int i = 0; i < 10; i++) {
		sem_init(&of[i].begun, 0, 0);
		sem_init(&of[i].go, 0, 0);
	}
}

TestSuite(shared, .init = setup, .fini = gpu_close, .timeout = 300);

static struct thing *open_key(int key)
{
	const struct thing like = {.key = key};
	struct shared *shared = NULL;
	int r = shared_open(&list, &like.shared, &shared, NULL);

	MUST((r == 0) == (shared != NULL));
	return (struct thing *)shared;
}

static void close_it(struct thing *thing)
{
	shared_close(&list, &thing->shared);
}

static void *open_in_thread(void *key)
{
	return open_key((int)(intptr_t)key);
}

static pthread_t begin_open(int key)
{
	pthread_t thread;

	MUST(pthread_create(&thread, NULL, open_in_thread,
			    (void *)(intptr_t)key) == 0);
	return thread;
}

static void *close_in_thread(void *thing)
{
	close_it(thing);
	return NULL;
}

static void *join(pthread_t thread)
{
	void *ret;

	MUST(pthread_join(thread, &ret) == 0);
	return ret;
}

Test(shared, the_first_user_opens_and_the_last_closes)
{
	struct thing *a = open_key(1), *b = open_key(1), *other = open_key(2);

	cr_expect(eq(ptr, a, b));
	cr_expect(eq(int, a->value, 100));
	cr_expect(ne(ptr, other, a));
	cr_expect(eq(int, of[1].n_opened, 1));
	close_it(a);
	cr_expect(eq(int, of[1].n_closed, 0));
	close_it(b);
	cr_expect(eq(int, of[1].n_closed, 1));
	cr_expect(eq(int, of[2].n_closed, 0));
	a = open_key(1);
	cr_expect(eq(int, of[1].n_opened, 2));
	close_it(a);
	close_it(other);
}

Test(shared, a_failed_open_leaves_no_entry)
{
	const struct thing like = {.key = 1};
	struct shared *shared = NULL;
	struct error err = ERROR_NULL;
	struct thing *thing;

	of[1].is_failing = true;
	cr_expect(
		eq(int, shared_open(&list, &like.shared, &shared, &err), -EIO));
	cr_expect(eq(str, err.msg, "it fails"));
	cr_expect(eq(ptr, shared, NULL));
	of[1].is_failing = false;
	thing = open_key(1);
	cr_expect(eq(int, of[1].n_opened, 2));
	cr_expect(eq(int, of[1].n_closed, 0));
	close_it(thing);
}

Test(shared, a_thread_that_comes_during_an_open_gets_the_same_object)
{
	struct thing *first, *second, *other;
	pthread_t a, b;

	of[1].is_slow_to_open = true;
	a = begin_open(1);
	gate_pass(&of[1].begun);
	b = begin_open(1);
	/* Opening another key waits for neither of the two. */
	other = open_key(2);
	close_it(other);
	sem_post(&of[1].go);
	first = join(a);
	second = join(b);
	cr_expect(eq(ptr, first, second));
	cr_expect(eq(int, of[1].n_opened, 1));
	close_it(first);
	cr_expect(eq(int, of[1].n_closed, 0));
	close_it(second);
	cr_expect(eq(int, of[1].n_closed, 1));
}

Test(shared, a_thread_that_waited_for_a_failed_open_tries_itself)
{
	struct thing *second;
	pthread_t a, b;

	of[1].is_slow_to_open = of[1].is_failing = true;
	a = begin_open(1);
	gate_pass(&of[1].begun);
	of[1].is_slow_to_open = of[1].is_failing = false;
	b = begin_open(1);
	sem_post(&of[1].go);
	cr_expect(eq(ptr, join(a), NULL));
	second = join(b);
	cr_assert(ne(ptr, second, NULL));
	cr_expect(eq(int, of[1].n_opened, 2));
	close_it(second);
}

Test(shared, an_object_is_not_opened_before_its_predecessor_is_closed)
{
	struct thing *thing = open_key(1), *other;
	pthread_t a, b;

	of[1].is_slow_to_close = true;
	MUST(pthread_create(&a, NULL, close_in_thread, thing) == 0);
	gate_pass(&of[1].begun);
	b = begin_open(1); /* MUST(!is_open) would abort otherwise */
	other = open_key(2);
	sem_post(&of[1].go);
	join(a);
	thing = join(b);
	cr_assert(ne(ptr, thing, NULL));
	cr_expect(eq(int, of[1].n_opened, 2));
	of[1].is_slow_to_close = false;
	close_it(thing);
	close_it(other);
}

static bool has_key(const struct shared *shared, const void *key)
{
	return ((const struct thing *)shared)->key == *(const int *)key;
}

static struct shared *find(int key)
{
	return shared_find(&list, has_key, &key);
}

Test(shared, finding_an_object_adds_a_user)
{
	struct thing *thing = open_key(1);

	cr_expect(eq(ptr, find(2), NULL));
	cr_expect(eq(ptr, find(1), &thing->shared));
	close_it(thing);
	cr_expect(eq(int, of[1].n_closed, 0));
	close_it(thing);
	cr_expect(eq(int, of[1].n_closed, 1));
	cr_expect(eq(ptr, find(1), NULL));
}

Test(shared, an_object_is_not_found_while_it_is_opened_or_closed)
{
	struct thing *thing;
	pthread_t thread;

	of[1].is_slow_to_open = of[1].is_slow_to_close = true;
	thread = begin_open(1);
	gate_pass(&of[1].begun);
	cr_expect(eq(ptr, find(1), NULL));
	sem_post(&of[1].go);
	thing = join(thread);
	MUST(pthread_create(&thread, NULL, close_in_thread, thing) == 0);
	gate_pass(&of[1].begun);
	cr_expect(eq(ptr, find(1), NULL));
	sem_post(&of[1].go);
	join(thread);
}

Test(shared, without_is_same_every_open_makes_a_new_object)
{
	static const struct shared_kind unlike = {
		.size = sizeof(struct thing),
		.open = open_thing,
		.close = close_thing,
	};
	static struct shared_list all = SHARED_LIST_INIT(&unlike);
	const struct thing one = {.key = 1}, two = {.key = 2};
	struct shared *a, *b;

	cr_assert(zero(int, shared_open(&all, &one.shared, &a, NULL)));
	cr_assert(zero(int, shared_open(&all, &two.shared, &b, NULL)));
	cr_expect(ne(ptr, a, b));
	shared_close(&all, a);
	cr_expect(eq(int, of[1].n_closed, 1));
	cr_expect(eq(int, of[2].n_closed, 0));
	shared_close(&all, b);
}

static void *churn(void *data)
{
	for (int i = 0; i < 5000; i++) {
		struct thing *thing = open_key(i % 3 + 1);

		MUST(thing && thing->value == thing->key * 100);
		MUST(of[thing->key].is_open);
		close_it(thing);
	}
	return data;
}

Test(shared, concurrent_threads_see_only_open_objects)
{
	pthread_t threads[6];

	for (int i = 0; i < 6; i++)
		MUST(pthread_create(&threads[i], NULL, churn, NULL) == 0);
	for (int i = 0; i < 6; i++)
		join(threads[i]);
	for (int i = 1; i <= 3; i++) {
		cr_expect(eq(int, of[i].n_opened, of[i].n_closed));
		cr_expect(not(of[i].is_open));
	}
	cr_expect(eq(ptr, list.first, NULL));
}

Test(shared, a_forked_child_is_refused_and_never_waits)
{
	struct thing *thing = open_key(1);
	const struct thing like = {.key = 1};
	struct shared *shared = NULL;
	int status;
	pid_t pid;

	pthread_mutex_lock(&list.lock); /* in place of another thread */
	pid = fork();
	if (pid == 0) {
		if (find(1))
			_exit(1);
		close_it(thing);
		_exit(shared_open(&list, &like.shared, &shared, NULL) == -ECHILD
			      ? 0
			      : 2);
	}
	pthread_mutex_unlock(&list.lock);
	cr_assert(eq(int, waitpid(pid, &status, 0), pid));
	cr_expect(zero(int, status));
	cr_expect(eq(int, of[1].n_closed, 0));
	close_it(thing);
}
