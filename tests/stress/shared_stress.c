/*
 * Tests objects that are opened once, under threads that open and close them
 * all the time: a thread that has an object sees it open, and no two opens
 * overlap. Opening and closing write plain words that users read, so an overlap
 * is a wrong word, and a race under ThreadSanitizer.
 */
#include "cuda/driver.h"
#include "cuda/shared.h"
#include "proto/error.h"
#include "tests/stress/stress.h"

#define N_THREADS 4
#define N_KEYS    3
#define N_OPENED  20000 /* by each thread */

struct thing {
	struct shared shared;
	int key;
	int value; /* 100 + key while it is open */
};

static bool is_open[N_KEYS]; /* plain on purpose */
static int n_opened[N_KEYS];

static int open_thing(struct shared *shared, struct error *err)
{
	struct thing *thing = (struct thing *)shared;

	check(!is_open[thing->key], "opened before its predecessor was closed");
	/* Every seventh open fails. */
	if (++n_opened[thing->key] % 7 == 0)
		return error_set(err, -1, "it fails");
	is_open[thing->key] = true;
	thing->value = 100 + thing->key;
	return 0;
}

static void close_thing(struct shared *shared)
{
	struct thing *thing = (struct thing *)shared;

	check(is_open[thing->key], "closed twice");
	is_open[thing->key] = false;
	thing->value = 0;
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

static bool has_key(const struct shared *shared, const void *key)
{
	return ((const struct thing *)shared)->key == *(const int *)key;
}

static void use(struct shared *shared, int key)
{
	struct thing *thing = (struct thing *)shared;

	check(thing->value == 100 + key, "used while it was not open");
	shared_close(&list, shared);
}

static void *work(void *data)
{
	for (int i = 0; i < N_OPENED; i++) {
		const struct thing like = {.key = i % N_KEYS};
		struct shared *shared;

		if (shared_open(&list, &like.shared, &shared, NULL) == 0)
			use(shared, like.key);
		shared = shared_find(&list, has_key, &like.key);
		if (shared)
			use(shared, like.key);
	}
	return data;
}

int main(void)
{
	pthread_t threads[N_THREADS];
	struct error err = ERROR_NULL;

	if (driver_load(&err) < 0) {
		fprintf(stderr, "shared_stress: %s\n", err.msg);
		return EXIT_FAILURE;
	}
	start_threads(threads, N_THREADS, work);
	join_threads(threads, N_THREADS);
	check(list.first == NULL, "something was left open");
	return EXIT_SUCCESS;
}
