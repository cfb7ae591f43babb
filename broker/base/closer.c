/*
 * There is one thread for each user that has sent descriptors lately. Queues
 * are made by the loop and live as long as the closer.
 */
#include "broker/base/closer.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "proto/frame.h"
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

/* An idle thread waits this long for more files, since making a thread costs
 * some 30 us. */
#define LINGER_S 1
/* The retry is soon, since without a thread no file is closed, and the broker
 * may not read the user's requests meanwhile. */
#define RETRY_MS 100

#define SECOND_NS UINT64_C(1000000000)
/*
 * After a close that took SLOW_NS of CPU time, the thread sleeps for a multiple
 * of that time. So a user who sends large memory files has a fifth of a CPU for
 * the closes, and must wait before it can send the next ones. Other processes
 * get the CPUs meanwhile. If more than MANY files wait before a close, the
 * thread does not sleep after it: they may keep much memory.
 */
#define SLOW_NS      1000000
#define SLEEP_FACTOR 4
#define SLEEP_MAX_NS SECOND_NS
#define MANY         (2 * CLOSER_FULL)

struct item {
	int fd;
	bool is_connection;
};

struct queue {
	struct closer_state *state;
	uint32_t uid;
	struct item *items; /* a ring */
	uint32_t first, n, max;
	bool is_closing; /* one more file was already taken from the ring */
	bool has_thread;
	bool has_changed; /* `on_change` must be called */
	pthread_cond_t more;
	struct queue *next;
};

struct closer_state {
	pthread_mutex_t lock; /* never held during a close */
	struct queue *queues;
	uint32_t n_threads;
	uv_async_t *async; /* NULL: the broker is stopping */
	bool is_abandoned; /* the last thread frees the state */
};

static uint32_t n_unclosed(const struct queue *queue)
{
	return queue->n + queue->is_closing;
}

/* --- lifetime ------------------------------------------------------------ */

static void state_free(struct closer_state *state)
{
	struct queue *queue;

	while ((queue = state->queues)) {
		state->queues = queue->next;
		pthread_cond_destroy(&queue->more);
		free(queue->items);
		free(queue);
	}
	pthread_mutex_destroy(&state->lock);
	free(state);
}

static void on_async(uv_async_t *async)
{
	struct closer *closer = async->data;
	struct closer_state *state = closer->state;
	struct queue *queue = state->queues;
	bool has_changed;

	for (; queue; queue = queue->next) {
		pthread_mutex_lock(&state->lock);
		has_changed = queue->has_changed;
		queue->has_changed = false;
		pthread_mutex_unlock(&state->lock);
		if (has_changed)
			closer->on_change(closer->data, queue->uid);
	}
}

/* Tells the loop that the queue has changed. The caller holds the lock. */
static void announce_change(struct queue *queue)
{
	queue->has_changed = true;
	if (queue->state->async)
		(void)uv_async_send(queue->state->async);
}

static void on_retry(uv_timer_t *timer);

int closer_init(struct closer *closer, uv_loop_t *loop,
		void (*on_change)(void *data, uint32_t uid), void *data,
		struct error *err)
{
	struct closer_state *state = calloc(1, sizeof(*state));
	int r;

	if (!state)
		return error_nomem(err, "descriptors that are to be closed");
	(void)pthread_mutex_init(&state->lock, NULL);
	r = uv_async_init(loop, &closer->async, on_async);
	if (r < 0) {
		state_free(state);
		return error_set(err, r,
				 "cannot watch threads that close "
				 "descriptors: %s",
				 uv_strerror(r));
	}
	(void)uv_timer_init(loop, &closer->retry);
	uv_unref((uv_handle_t *)&closer->async);
	uv_unref((uv_handle_t *)&closer->retry);
	closer->async.data = closer->retry.data = closer;
	closer->on_change = on_change;
	closer->data = data;
	state->async = &closer->async;
	closer->state = state;
	return 0;
}

void closer_stop(struct closer *closer)
{
	struct closer_state *state = closer->state;

	if (!state || !state->async)
		return;
	pthread_mutex_lock(&state->lock);
	state->async = NULL;
	pthread_mutex_unlock(&state->lock);
	uv_close((uv_handle_t *)&closer->async, NULL);
	uv_close((uv_handle_t *)&closer->retry, NULL);
}

void closer_deinit(struct closer *closer)
{
	struct closer_state *state = closer->state;
	bool is_last;

	if (!state)
		return;
	closer->state = NULL;
	pthread_mutex_lock(&state->lock);
	state->is_abandoned = true;
	is_last = state->n_threads == 0;
	for (struct queue *queue = state->queues; queue; queue = queue->next)
		pthread_cond_signal(&queue->more);
	pthread_mutex_unlock(&state->lock);
	if (is_last)
		state_free(state);
}

/* --- the threads --------------------------------------------------------- */

/* Waits until there is a file to close. The caller holds the lock. Returns
 * false if the wait timed out. */
static bool wait_for_more(struct queue *queue)
{
	struct timespec until;

	(void)clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LINGER_S;
	while (queue->n == 0 && !queue->state->is_abandoned) {
		if (pthread_cond_clockwait(&queue->more, &queue->state->lock,
					   CLOCK_MONOTONIC,
					   &until) == ETIMEDOUT)
			break;
	}
	return queue->n > 0;
}

/* Reads all unread requests: closing a connection that has some would discard
 * the replies that its client has not read yet. */
static void drain(int sock_fd)
{
	char byte;

	while (recv(sock_fd, &byte, sizeof(byte), MSG_DONTWAIT) > 0)
		;
}

static uint64_t cpu_time_ns(void)
{
	struct timespec now;

	(void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
	return (uint64_t)now.tv_sec * SECOND_NS + (uint64_t)now.tv_nsec;
}

static void sleep_after(uint64_t ns)
{
	struct timespec time;

	if (ns < SLOW_NS)
		return;
	ns *= SLEEP_FACTOR;
	if (ns > SLEEP_MAX_NS)
		ns = SLEEP_MAX_NS;
	time.tv_sec = (time_t)(ns / SECOND_NS);
	time.tv_nsec = (long)(ns % SECOND_NS);
	(void)nanosleep(&time, NULL);
}

/* Closes the first file. The caller holds the lock, which is released during
 * the close. */
static void close_first(struct queue *queue)
{
	struct closer_state *state = queue->state;
	struct item item = queue->items[queue->first];
	bool may_sleep = queue->n <= MANY;
	uint64_t ns;

	queue->first = (queue->first + 1) % queue->max;
	queue->n--;
	queue->is_closing = true;
	pthread_mutex_unlock(&state->lock);
	if (item.is_connection)
		drain(item.fd);
	ns = cpu_time_ns();
	(void)close(item.fd);
	ns = cpu_time_ns() - ns;
	if (may_sleep)
		sleep_after(ns);
	pthread_mutex_lock(&state->lock);
	queue->is_closing = false;
	if (queue->n == CLOSER_FULL - 1)
		announce_change(queue);
}

static void *run(void *data)
{
	struct queue *queue = data;
	struct closer_state *state = queue->state;
	bool is_last;

	pthread_mutex_lock(&state->lock);
	while (wait_for_more(queue))
		close_first(queue);
	queue->has_thread = false;
	is_last = --state->n_threads == 0 && state->is_abandoned;
	pthread_mutex_unlock(&state->lock);
	if (is_last)
		state_free(state);
	return NULL;
}

/* Starts the thread of a queue. The caller holds the lock. If there is no
 * thread, the timer tries again. */
static void start_thread(struct closer *closer, struct queue *queue)
{
	pthread_t thread;

	if (failpoint_fail("closer.thread") < 0 ||
	    pthread_create(&thread, NULL, run, queue) != 0) {
		(void)uv_timer_start(&closer->retry, on_retry, RETRY_MS, 0);
		return;
	}
	(void)pthread_detach(thread);
	queue->has_thread = true;
	queue->state->n_threads++;
}

static void on_retry(uv_timer_t *timer)
{
	struct closer *closer = timer->data;
	struct closer_state *state = closer->state;
	struct queue *queue;

	pthread_mutex_lock(&state->lock);
	for (queue = state->queues; queue; queue = queue->next) {
		if (queue->n > 0 && !queue->has_thread)
			start_thread(closer, queue);
	}
	pthread_mutex_unlock(&state->lock);
}

/* --- queues -------------------------------------------------------------- */

static struct queue *find(const struct closer_state *state, uint32_t uid)
{
	struct queue *queue = state->queues;

	while (queue && queue->uid != uid)
		queue = queue->next;
	return queue;
}

static struct queue *find_or_make(struct closer_state *state, uint32_t uid)
{
	struct queue *queue = find(state, uid);

	if (queue)
		return queue;
	queue = calloc(1, sizeof(*queue));
	if (!queue)
		return NULL;
	(void)pthread_cond_init(&queue->more, NULL);
	queue->state = state;
	queue->uid = uid;
	queue->next = state->queues;
	state->queues = queue;
	return queue;
}

/* Makes space for one more file. The new ring starts at index 0. */
static bool reserve(struct queue *queue)
{
	uint32_t max = queue->max ? queue->max * 2 : 16;
	struct item *items;

	if (queue->n < queue->max)
		return true;
	items = calloc(max, sizeof(*items));
	if (!items)
		return false;
	for (uint32_t i = 0; i < queue->n; i++)
		items[i] = queue->items[(queue->first + i) % queue->max];
	free(queue->items);
	queue->items = items;
	queue->first = 0;
	queue->max = max;
	return true;
}

static void put(struct closer *closer, uint32_t uid, const struct item *item)
{
	struct closer_state *state = closer->state;
	struct queue *queue;
	bool is_queued;

	pthread_mutex_lock(&state->lock);
	queue = find_or_make(state, uid);
	is_queued = queue && reserve(queue);
	if (is_queued) {
		queue->items[(queue->first + queue->n++) % queue->max] = *item;
		if (n_unclosed(queue) == CLOSER_FULL)
			announce_change(queue);
		if (!queue->has_thread)
			start_thread(closer, queue);
		pthread_cond_signal(&queue->more);
	}
	pthread_mutex_unlock(&state->lock);
	if (!is_queued) /* memory ran out, so close it here */
		(void)close(item->fd);
}

void closer_put(struct closer *closer, uint32_t uid, int fd)
{
	put(closer, uid, &(struct item){.fd = fd});
}

void closer_put_connection(struct closer *closer, uint32_t uid, int sock_fd)
{
	(void)shutdown(sock_fd, SHUT_RDWR);
	put(closer, uid, &(struct item){.fd = sock_fd, .is_connection = true});
}

void closer_put_frame(struct closer *closer, uint32_t uid, struct frame *frame)
{
	for (uint16_t i = 0; i < frame->n_fds; i++) {
		if (frame->fds[i] >= 0)
			closer_put(closer, uid, frame->fds[i]);
		frame->fds[i] = -1;
	}
}

/* Returns the number of this user's descriptors that are not closed yet. */
static uint32_t n_of(const struct closer *closer, uint32_t uid)
{
	struct closer_state *state = closer->state;
	const struct queue *queue;
	uint32_t n;

	pthread_mutex_lock(&state->lock);
	queue = find(state, uid);
	n = queue ? n_unclosed(queue) : 0;
	pthread_mutex_unlock(&state->lock);
	return n;
}

bool closer_is_full(const struct closer *closer, uint32_t uid)
{
	return n_of(closer, uid) >= CLOSER_FULL;
}

bool closer_is_any_full(const struct closer *closer)
{
	struct closer_state *state = closer->state;
	const struct queue *queue;
	bool is_full = false;

	pthread_mutex_lock(&state->lock);
	for (queue = state->queues; queue && !is_full; queue = queue->next)
		is_full = n_unclosed(queue) >= CLOSER_FULL;
	pthread_mutex_unlock(&state->lock);
	return is_full;
}

bool closer_is_crowded(const struct closer *closer, uint32_t uid)
{
	return n_of(closer, uid) >= CLOSER_CROWDED;
}

uint64_t closer_n_open(const struct closer *closer)
{
	struct closer_state *state = closer->state;
	const struct queue *queue;
	uint64_t n = 0;

	pthread_mutex_lock(&state->lock);
	for (queue = state->queues; queue; queue = queue->next)
		n += n_unclosed(queue);
	pthread_mutex_unlock(&state->lock);
	return n;
}
