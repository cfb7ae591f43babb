#include "client/unmap.h"
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>

/* The size of memory that is unmapped at once. Smaller mappings are not worth a
 * thread. */
#define PIECE ((size_t)1 << 20)

struct range {
	struct unmapper *unmapper;
	uint8_t *address;
	size_t size;
};

void unmapper_init(struct unmapper *unmapper)
{
	*unmapper = (struct unmapper){.n_threads = 0};
	pthread_mutex_init(&unmapper->lock, NULL);
	pthread_cond_init(&unmapper->is_idle, NULL);
}

static void count(struct unmapper *unmapper, int change)
{
	pthread_mutex_lock(&unmapper->lock);
	unmapper->n_threads += (unsigned int)change;
	if (!unmapper->n_threads)
		pthread_cond_broadcast(&unmapper->is_idle);
	pthread_mutex_unlock(&unmapper->lock);
}

/*
 * First drop the pages piece by piece: if munmap() dropped them all, other
 * threads could not map memory until it is done.
 */
static void *run(void *data)
{
	struct range range = *(struct range *)data;

	free(data);
	for (size_t at = 0; at < range.size; at += PIECE) {
		size_t left = range.size - at;

		(void)madvise(range.address + at, left < PIECE ? left : PIECE,
			      MADV_DONTNEED);
	}
	(void)munmap(range.address, range.size);
	count(range.unmapper, -1);
	return NULL;
}

/* Start the thread with all signals blocked, since they are for the caller's
 * threads. */
static int start(struct range *range)
{
	pthread_attr_t attr;
	sigset_t all, before;
	pthread_t thread;
	int r;

	pthread_attr_init(&attr);
	(void)pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&thread, &attr, run, range);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	pthread_attr_destroy(&attr);
	return -r;
}

void unmapper_add(struct unmapper *unmapper, void *address, size_t size)
{
	struct range *range = size > PIECE ? malloc(sizeof(*range)) : NULL;

	if (range) {
		*range = (struct range){unmapper, address, size};
		count(unmapper, 1);
		if (start(range) == 0)
			return;
		count(unmapper, -1);
		free(range);
	}
	(void)munmap(address, size);
}

void unmapper_deinit(struct unmapper *unmapper)
{
	pthread_mutex_lock(&unmapper->lock);
	while (unmapper->n_threads)
		pthread_cond_wait(&unmapper->is_idle, &unmapper->lock);
	pthread_mutex_unlock(&unmapper->lock);
	pthread_cond_destroy(&unmapper->is_idle);
	pthread_mutex_destroy(&unmapper->lock);
}
