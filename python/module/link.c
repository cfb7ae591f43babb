#include "link.h"
#include "call.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

int link_open(const char *path, uint64_t budget, int32_t reconnect_ms,
	      struct link **ret)
{
	struct fsdp_connect_options options = {
		.struct_size = sizeof(options),
		.path = path,
		.budget = budget,
		.reconnect_ms = reconnect_ms,
		.interrupted = call_is_interrupted,
	};
	struct link *link = malloc(sizeof(*link));
	int r;

	if (!link)
		return -ENOMEM;
	r = fsdp_connect(&options, &link->client);
	if (r < 0) {
		free(link);
		return r;
	}
	atomic_init(&link->n_users, 1);
	*ret = link;
	return 0;
}

static atomic_bool is_left_open;

void link_leave_open(void)
{
	atomic_store(&is_left_open, true);
}

bool link_is_left_open(void)
{
	return atomic_load_explicit(&is_left_open, memory_order_relaxed);
}

/* Drops a user, and returns whether it was the last one. */
static bool drop(struct link *link)
{
	/* Acquire and release: the last user sees the writes of all others. */
	return atomic_fetch_sub_explicit(&link->n_users, 1,
					 memory_order_acq_rel) == 1 &&
	       !link_is_left_open();
}

static void *end(void *link)
{
	(void)fsdp_close(((struct link *)link)->client);
	free(link);
	return NULL;
}

void link_close(struct link *link)
{
	if (drop(link))
		end(link);
}

void link_drop(struct link *link)
{
	sigset_t all, old;
	pthread_t thread;

	if (!drop(link))
		return;
	/* Signals are for Python's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	if (pthread_create(&thread, NULL, end, link) == 0)
		pthread_detach(thread);
	else
		end(link);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
}
