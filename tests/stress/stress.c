#include "tests/stress/stress.h"
#include <errno.h>
#include <time.h>

#define LATE_NS 200000

atomic_bool is_over;

void check(bool is_true, const char *what)
{
	if (is_true)
		return;
	fprintf(stderr, "%s: %s\n", program_invocation_short_name, what);
	abort();
}

void come_late(void)
{
	const struct timespec time = {.tv_nsec = LATE_NS};

	(void)nanosleep(&time, NULL);
}

void start_threads(pthread_t *threads, uint32_t n, thread_fn *fn)
{
	for (uintptr_t i = 0; i < n; i++)
		check(pthread_create(&threads[i], NULL, fn, (void *)i) == 0,
		      "no thread");
}

void join_threads(const pthread_t *threads, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++)
		(void)pthread_join(threads[i], NULL);
}

bool look_over(const void *unused)
{
	(void)unused;
	return atomic_load_explicit(&is_over, memory_order_seq_cst);
}
