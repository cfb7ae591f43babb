#include "stage.h"
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <signal.h>
#include <stddef.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define YIELD_NS 200000 /* in a barrier, before going to sleep */

static uint64_t clock_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Sleep until `*word` is not `seen`, another process wakes us, or `ms` have
 * passed. */
static void word_wait(const uint32_t *word, uint32_t seen, uint32_t ms)
{
	struct timespec t = {.tv_sec = ms / 1000,
			     .tv_nsec = ms % 1000 * 1000000l};

	syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

static void word_wake(const uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* All of these are sequentially consistent. They are not part of what is
 * measured. */
static uint32_t word_load(const uint32_t *word)
{
	return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

static int map(int fd, struct stage **ret)
{
	void *memory = mmap(NULL, sizeof(**ret), PROT_READ | PROT_WRITE,
			    MAP_SHARED, fd, 0);

	if (memory == MAP_FAILED)
		return -errno;
	*ret = memory;
	return 0;
}

int stage_create(const char *path, uint32_t n_ranks, struct stage **ret)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
	int r;

	if (fd < 0)
		return -errno;
	r = ftruncate(fd, sizeof(**ret)) < 0 ? -errno : map(fd, ret);
	close(fd);
	if (r < 0)
		return r;
	(*ret)->leader = getpid();
	(*ret)->n_ranks = n_ranks;
	for (uint32_t i = 0; i < STAGE_MAX_RANKS; i++)
		(*ret)->cpus[i] = -1;
	return 0;
}

int stage_open(const char *path, struct stage **ret)
{
	int fd = open(path, O_RDWR | O_CLOEXEC);
	int r;

	if (fd < 0)
		return -errno;
	r = map(fd, ret);
	close(fd);
	return r;
}

void stage_close(struct stage *stage)
{
	munmap(stage, sizeof(*stage));
}

void stage_give(struct stage *stage, const struct stage_order *order)
{
	stage->order = *order;
	__atomic_store_n(&stage->n_done, 0, __ATOMIC_SEQ_CST);
	__atomic_add_fetch(&stage->n_orders, 1, __ATOMIC_SEQ_CST);
	word_wake(&stage->n_orders);
}

bool stage_wait(struct stage *stage, uint32_t ms)
{
	uint64_t end = clock_ns() + ms * 1000000ull;
	uint32_t n;

	for (;;) {
		n = word_load(&stage->n_done);
		if (n == stage->n_ranks)
			return true;
		if (clock_ns() >= end)
			return false;
		word_wait(&stage->n_done, n, ms);
	}
}

double stage_time(const struct stage *stage)
{
	uint64_t start = UINT64_MAX, end = 0;

	for (uint32_t i = 0; i < stage->n_ranks; i++) {
		if (stage->times[i].start < start)
			start = stage->times[i].start;
		if (stage->times[i].end > end)
			end = stage->times[i].end;
	}
	return (double)(end - start) / stage->order.n_iterations;
}

/* --- a rank's side ------------------------------------------------------- */

/* Without a leader no process would wake us, so end. */
static void check_leader(const struct stage *stage)
{
	if (kill(stage->leader, 0) < 0 && errno == ESRCH)
		_exit(1);
}

static void next_order(const struct stage *stage, uint32_t seen)
{
	while (word_load(&stage->n_orders) == seen) {
		word_wait(&stage->n_orders, seen, 1000);
		check_leader(stage);
	}
}

static void done(struct stage *stage)
{
	uint32_t n = __atomic_add_fetch(&stage->n_done, 1, __ATOMIC_SEQ_CST);

	if (n == stage->n_ranks)
		word_wake(&stage->n_done);
}

static void barrier(struct stage *stage)
{
	uint32_t seen = word_load(&stage->n_barriers);
	uint32_t n = __atomic_add_fetch(&stage->n_arrived, 1, __ATOMIC_SEQ_CST);
	uint64_t end = clock_ns() + YIELD_NS;

	if (n == stage->n_ranks) {
		__atomic_store_n(&stage->n_arrived, 0, __ATOMIC_SEQ_CST);
		__atomic_add_fetch(&stage->n_barriers, 1, __ATOMIC_SEQ_CST);
		word_wake(&stage->n_barriers);
		return;
	}
	while (word_load(&stage->n_barriers) == seen) {
		if (clock_ns() < end) {
			sched_yield();
			continue;
		}
		word_wait(&stage->n_barriers, seen, 1000);
		check_leader(stage);
	}
}

static void run(struct stage *stage, uint32_t rank,
		const struct stage_acts *acts, void *data)
{
	const struct stage_order *order = &stage->order;

	barrier(stage);
	for (uint32_t i = 0; i < order->n_warm; i++)
		acts->iterate(data, order);
	stage->times[rank].start = clock_ns();
	for (uint32_t i = 0; i < order->n_iterations; i++)
		acts->iterate(data, order);
	stage->times[rank].end = clock_ns();
}

static void move(const struct stage *stage, uint32_t rank)
{
	cpu_set_t set;

	if (stage->cpus[rank] < 0)
		return;
	CPU_ZERO(&set);
	CPU_SET(stage->cpus[rank], &set);
	if (sched_setaffinity(0, sizeof(set), &set) < 0)
		_exit(1);
}

void stage_serve(struct stage *stage, uint32_t rank,
		 const struct stage_acts *acts, void *data)
{
	move(stage, rank);
	for (uint32_t seen = 0;; seen++) {
		done(stage);
		next_order(stage, seen);
		switch (stage->order.verb) {
		case STAGE_PREPARE:
			acts->prepare(data, &stage->order);
			break;
		case STAGE_RUN:
			run(stage, rank, acts, data);
			break;
		case STAGE_RELEASE:
			acts->release(data);
			break;
		default:
			return;
		}
	}
}
