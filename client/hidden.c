#include "client/hidden.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

struct hidden {
	void *address;
	size_t size;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct hidden *list; /* of all clients of this process */
static size_t n, capacity;

static void before_fork(void)
{
	pthread_mutex_lock(&lock);
}

static void after_fork(void)
{
	pthread_mutex_unlock(&lock);
}

/* The child's own children inherit these pages, so its list begins empty. */
static void take_addresses(void)
{
	for (size_t i = 0; i < n; i++)
		(void)mmap(list[i].address, list[i].size, PROT_NONE,
			   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE |
				   MAP_FIXED_NOREPLACE,
			   -1, 0);
	n = 0;
	pthread_mutex_unlock(&lock);
}

static void __attribute__((constructor)) watch_forks(void)
{
	pthread_atfork(before_fork, after_fork, take_addresses);
}

static int reserve_room(void)
{
	size_t wanted = capacity ? 2 * capacity : 8;
	struct hidden *new;

	if (n < capacity)
		return 0;
	new = reallocarray(list, wanted, sizeof(*list));
	if (!new)
		return -ENOMEM;
	list = new;
	capacity = wanted;
	return 0;
}

int hidden_add(void *address, size_t size)
{
	int r;

	pthread_mutex_lock(&lock);
	r = reserve_room();
	if (r == 0 && madvise(address, size, MADV_DONTFORK) < 0)
		r = -errno;
	if (r == 0)
		list[n++] = (struct hidden){address, size};
	pthread_mutex_unlock(&lock);
	return r;
}

void hidden_forget(const void *address)
{
	pthread_mutex_lock(&lock);
	for (size_t i = 0; i < n; i++)
		if (list[i].address == address) {
			list[i] = list[--n];
			break;
		}
	pthread_mutex_unlock(&lock);
}
