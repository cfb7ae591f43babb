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

static void *close_link(void *link)
{
	(void)fsdp_close(((struct link *)link)->client);
	free(link);
	return NULL;
}

void link_close(struct link *link)
{
	if (drop(link))
		close_link(link);
}

static bool start_thread(void *(*fn)(void *), void *data)
{
	sigset_t all, old;
	pthread_t thread;
	int r;

	/* Signals are for Python's threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&thread, NULL, fn, data);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (r == 0)
		pthread_detach(thread);
	return r == 0;
}

void link_drop(struct link *link)
{
	if (drop(link) && !start_thread(close_link, link))
		close_link(link);
}

struct ending {
	struct link *link;
	link_end_fn *fn;
	void *object;
};

static void *end_object(void *data)
{
	struct ending *ending = data;

	(void)ending->fn(ending->object);
	link_close(ending->link);
	free(ending);
	return NULL;
}

/* Without memory for a thread, the object ends with the process. */
static void end_elsewhere(const struct ending *it)
{
	struct ending *ending = malloc(sizeof(*ending));

	if (!ending)
		return;
	*ending = *it;
	link_use(ending->link);
	if (start_thread(end_object, ending))
		return;
	link_drop(ending->link);
	free(ending);
}

int link_end(struct link *link, link_end_fn *fn, void *object)
{
	const struct ending ending = {link, fn, object};
	struct call call;
	int r;

	if (call_is_in_handler()) {
		end_elsewhere(&ending);
		return 0;
	}
	call_begin_end(&call);
	r = fn(object);
	call_end_end(&call);
	return r;
}
