/*
 * The descriptor of a channel for event loops.
 *
 * Senders and receivers ring bells in shared memory, on which a program cannot
 * poll. So a thread waits for the bell and writes an eventfd. It does so while
 * the descriptor is *armed*: from a call that has found nothing until there is
 * something. The descriptor is readable while it is not armed. After it was
 * armed the thread looks before it sleeps, so no earlier event is missed.
 */
#include "client/channel_impl.h"
#include "client/client.h"
#include "client/own_fd.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/eventfd.h>
#include <unistd.h>

/* limit of a sleep, in case the process that should ring has died */
#define SLICE_NS (1000 * MS_NS)

struct watch {
	struct fsdp_channel *channel;
	int fd;
	pthread_t thread;
	pthread_mutex_t lock;
	pthread_cond_t is_changed;
	bool is_armed; /* protected by `lock` */
	_Atomic bool is_stopped;
};

static int mark_of(const struct watch *watch)
{
	return watch->channel->client->connection.self.mark;
}

/* Check that the program has not closed the descriptor. */
static bool is_open(const struct watch *watch)
{
	return own_fd_is(watch->fd, mark_of(watch));
}

/* --- the thread ---------------------------------------------------------- */

static bool is_over(const void *data)
{
	const struct watch *watch = data;

	return atomic_load(&watch->is_stopped) ||
	       channel_has_news(watch->channel);
}

static int is_stopped(void *data)
{
	const struct watch *watch = data;

	return atomic_load(&watch->is_stopped);
}

static bool wait_once(struct watch *watch, struct slots_wait *wait)
{
	struct fsdp_channel *channel = watch->channel;
	int64_t until_ns = bell_now_ns() + SLICE_NS;
	enum bell_outcome outcome;

	channel_begin_wait(channel);
	if (channel->role == FSDP_CONSUMER)
		outcome = slots_wait_item(wait, until_ns);
	else
		outcome = slots_wait_credit(
			wait, channel_lag_ends(channel, until_ns));
	channel_end_wait(channel);
	(void)channel_report_ending(channel, wait->ending, NULL);
	if (outcome == BELL_AGAIN && channel->role == FSDP_PRODUCER)
		(void)channel_report_lag(channel, NULL);
	return outcome != BELL_AGAIN;
}

/* Called with the lock. */
static void make_readable(struct watch *watch)
{
	const uint64_t one = 1;

	watch->is_armed = false;
	/* This cannot fail, because the eventfd was read when it was armed. */
	if (is_open(watch))
		(void)!write(watch->fd, &one, sizeof(one));
}

static void *run(void *data)
{
	struct watch *watch = data;
	struct fsdp_channel *channel = watch->channel;
	struct slots_wait wait = {.slots = &channel->slots,
				  .place = channel->place,
				  .seen = &channel->seen,
				  .is_over = is_over,
				  .data = watch,
				  .is_watch = true};

	interrupt_of_thread = (struct interrupt){is_stopped, watch};
	pthread_mutex_lock(&watch->lock);
	while (!atomic_load(&watch->is_stopped)) {
		bool is_met;

		if (!watch->is_armed) {
			pthread_cond_wait(&watch->is_changed, &watch->lock);
			continue;
		}
		pthread_mutex_unlock(&watch->lock);
		is_met = wait_once(watch, &wait);
		pthread_mutex_lock(&watch->lock);
		if (!is_met)
			continue;
		make_readable(watch);
		wait.since_ns = 0;
	}
	pthread_mutex_unlock(&watch->lock);
	return NULL;
}

/* Start the thread with all signals blocked, since they are for the caller's
 * threads. */
static int start(struct watch *watch, struct error *err)
{
	sigset_t all, before;
	int r;

	sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	r = pthread_create(&watch->thread, NULL, run, watch);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	return r == 0 ? 0
		      : error_errno(err, -r,
				    "cannot start the thread of a channel");
}

/* --- arming -------------------------------------------------------------- */

void channel_watch_arm(struct fsdp_channel *channel)
{
	struct watch *watch =
		atomic_load_explicit(&channel->watch, memory_order_acquire);
	uint64_t n;

	if (!watch)
		return;
	pthread_mutex_lock(&watch->lock);
	if (!watch->is_armed) {
		/* This read fails the first time, when nothing was written
		 * yet. */
		if (is_open(watch))
			(void)!read(watch->fd, &n, sizeof(n));
		watch->is_armed = true;
		pthread_cond_signal(&watch->is_changed);
	}
	pthread_mutex_unlock(&watch->lock);
}

/* --- making and freeing -------------------------------------------------- */

static void free_watch(struct watch *watch)
{
	own_fd_close(watch->fd, mark_of(watch));
	pthread_cond_destroy(&watch->is_changed);
	pthread_mutex_destroy(&watch->lock);
	free(watch);
}

static int make_watch(struct fsdp_channel *channel, struct error *err)
{
	struct watch *watch = calloc(1, sizeof(*watch));
	int r = 0;

	if (!watch)
		return error_nomem(err, "the descriptor of a channel");
	watch->channel = channel;
	pthread_mutex_init(&watch->lock, NULL);
	pthread_cond_init(&watch->is_changed, NULL);
	watch->fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	if (watch->fd < 0)
		r = error_errno(err, -errno, "cannot make an eventfd");
	own_fd_mark(watch->fd, mark_of(watch));
	if (r == 0)
		r = start(watch, err);
	if (r < 0) {
		free_watch(watch);
		return r;
	}
	atomic_store_explicit(&channel->watch, watch, memory_order_release);
	channel_watch_arm(channel);
	return 0;
}

int fsdp_channel_fd(struct fsdp_channel *channel)
{
	struct error *err = error_of_thread();
	int r = channel_check(channel, err);

	if (r < 0)
		return r;
	pthread_mutex_lock(&channel->lock);
	if (!channel->watch)
		r = make_watch(channel, err);
	pthread_mutex_unlock(&channel->lock);
	return r < 0 ? r : channel->watch->fd;
}

static void stop(struct watch *watch)
{
	pthread_mutex_lock(&watch->lock);
	atomic_store(&watch->is_stopped, true);
	pthread_cond_signal(&watch->is_changed);
	pthread_mutex_unlock(&watch->lock);
	slots_ring(&watch->channel->slots);
	(void)pthread_join(watch->thread, NULL);
}

/* In a forked child the lock may be held for ever by a thread that does not
 * exist there, so the mutex and the condition variable are not destroyed. */
void channel_watch_free(struct fsdp_channel *channel, bool is_forked)
{
	struct watch *watch = channel->watch;

	if (!watch)
		return;
	if (is_forked) {
		own_fd_close(watch->fd, mark_of(watch));
		free(watch);
		return;
	}
	stop(watch);
	free_watch(watch);
}
