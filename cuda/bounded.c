/*
 * The thread is joined when the call has returned, so that all its resources
 * are freed. If the caller gives up earlier, the thread is detached, and frees
 * the handle itself.
 */
#include "cuda/bounded.h"
#include "proto/error.h"
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <time.h>

#define NS_PER_MS UINT64_C(1000000)
#define NS_PER_S  (1000 * NS_PER_MS)

struct bounded {
	void (*fn)(void *data);
	void *data;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t changed;
	bool is_back, is_left;
};

uint64_t bounded_now(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

uint64_t bounded_until(uint32_t ms)
{
	return bounded_now() + ms * NS_PER_MS;
}

static struct bounded *bounded_new(void)
{
	struct bounded *call = calloc(1, sizeof(*call));
	pthread_condattr_t attributes;

	if (!call)
		return NULL;
	pthread_mutex_init(&call->lock, NULL);
	pthread_condattr_init(&attributes);
	pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
	pthread_cond_init(&call->changed, &attributes);
	pthread_condattr_destroy(&attributes);
	return call;
}

static void bounded_free(struct bounded *call)
{
	pthread_cond_destroy(&call->changed);
	pthread_mutex_destroy(&call->lock);
	free(call);
}

static void *run(void *data)
{
	struct bounded *call = data;
	bool is_left;

	call->fn(call->data);
	pthread_mutex_lock(&call->lock);
	call->is_back = true;
	is_left = call->is_left;
	pthread_cond_signal(&call->changed);
	pthread_mutex_unlock(&call->lock);
	if (is_left)
		bounded_free(call);
	return NULL;
}

/* The thread must not receive the program's signals. */
static int start(struct bounded *call)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&call->thread, NULL, run, call);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	return -r;
}

int bounded_start(void (*fn)(void *data), void *data, struct bounded **ret,
		  struct error *err)
{
	struct bounded *call = bounded_new();
	int r;

	if (!call)
		return error_nomem(err, "a thread");
	call->fn = fn;
	call->data = data;
	r = start(call);
	if (r < 0) {
		bounded_free(call);
		return error_errno(err, r, "cannot start a thread");
	}
	*ret = call;
	return 0;
}

bool bounded_await(struct bounded *call, uint64_t until_ns)
{
	const struct timespec until = {
		.tv_sec = (time_t)(until_ns / NS_PER_S),
		.tv_nsec = (long)(until_ns % NS_PER_S),
	};
	bool is_back;
	int r = 0;

	pthread_mutex_lock(&call->lock);
	while (!call->is_back && r == 0)
		r = pthread_cond_timedwait(&call->changed, &call->lock, &until);
	is_back = call->is_back;
	pthread_mutex_unlock(&call->lock);
	if (!is_back)
		return false;
	(void)pthread_join(call->thread, NULL);
	bounded_free(call);
	return true;
}

void bounded_leave(struct bounded *call)
{
	pthread_t thread = call->thread;
	bool is_back;

	pthread_mutex_lock(&call->lock);
	call->is_left = true;
	is_back = call->is_back;
	pthread_mutex_unlock(&call->lock);
	if (!is_back) {
		(void)pthread_detach(thread);
		return;
	}
	(void)pthread_join(thread, NULL);
	bounded_free(call);
}
