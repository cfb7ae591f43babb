/*
 * Streams: queues and their threads. A stream has references from its thread,
 * its handle, and work of other streams that waits for it.
 */
#include "tests/fakes/cuda/stream.h"
#include "tests/fakes/cuda/context.h"
#include "tests/fakes/cuda/device.h"
#include "tests/fakes/cuda/fake.h"
#include "tests/fakes/cuda/guard.h"
#include "tests/fakes/cuda/mapping.h"
#include "tests/fakes/cuda/process.h"
#include "tests/fakes/cuda/queue.h"
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>

#define BACK_OFF_MAX_US 500

/* Work that waits for another stream of this process. */
struct turn {
	struct work work;
	struct stream *other; /* a reference */
	uint64_t n;           /* how much work must be done */
};

static __thread bool is_host_function;
/* Streams whose threads have done their last work, but must still be joined. */
static struct stream *ended;

static void *serve(void *data);

static void sleep_us(uint64_t us)
{
	struct timespec time = {(time_t)(us / 1000000),
				(long)(us % 1000000 * 1000)};

	nanosleep(&time, NULL);
}

void stream_back_off(unsigned int *us)
{
	if (*us == 0) {
		sched_yield();
		*us = 5;
		return;
	}
	sleep_us(*us);
	*us = *us * 2 < BACK_OFF_MAX_US ? *us * 2 : BACK_OFF_MAX_US;
}

bool stream_is_host_function(void)
{
	return is_host_function;
}

void stream_set_host_function(bool is_one)
{
	is_host_function = is_one;
}

/* --- life ---------------------------------------------------------------- */

/* Blocks the signals of the program, which its own threads must get. But bad
 * work must still be caught. */
static int start_thread(struct stream *stream)
{
	sigset_t all, old;
	int r;

	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	r = pthread_create(&stream->thread, NULL, serve, stream);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return r;
}

CUresult stream_new(struct context *context, bool is_blocking,
		    struct stream **ret)
{
	static uint64_t n_made;
	struct stream *stream = calloc(1, sizeof(*stream));

	if (!stream)
		return CUDA_ERROR_OUT_OF_MEMORY;
	stream->context = context;
	stream->is_blocking = is_blocking;
	stream->last = &stream->first;
	stream->queue = queue_choose(context->queues);
	stream->n_refs = 2; /* the thread owns one, too, until it is joined */
	/* The seed must not be 0. Streams made in the same order have the same
	 * delays. */
	stream->random =
		(settings()->seed + ++n_made) * UINT64_C(0x9e3779b97f4a7c15) |
		1;
	pthread_cond_init(&stream->arrival, NULL);
	stream_reap();
	if (start_thread(stream) != 0) {
		pthread_cond_destroy(&stream->arrival);
		free(stream);
		return CUDA_ERROR_OUT_OF_MEMORY;
	}
	process.n_threads++;
	stream->next = context->streams;
	context->streams = stream;
	*ret = stream;
	return CUDA_SUCCESS;
}

void stream_unref(struct stream *stream)
{
	if (--stream->n_refs > 0)
		return;
	pthread_cond_destroy(&stream->arrival);
	free(stream);
}

void stream_reap(void)
{
	struct stream *stream;

	while ((stream = ended)) {
		ended = stream->next;
		process_unlock();
		/* the thread has almost ended */
		pthread_join(stream->thread, NULL);
		process_lock();
		stream_unref(stream);
	}
}

static void tell_to_end(struct stream *stream)
{
	stream->is_destroyed = true;
	pthread_cond_signal(&stream->arrival);
}

void stream_end(struct stream *stream)
{
	tell_to_end(stream);
	/* A stream without work ends at once, and then no trace of it may
	 * remain. */
	while (stream->n_done == stream->n_queued && !stream->has_ended &&
	       !process.is_stopping)
		process_wait();
	stream_reap();
}

static void unlink_stream(struct stream *stream)
{
	struct stream **at = &stream->context->streams;

	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
}

static bool has_dropped(const struct context *context)
{
	const struct stream *stream = context->streams;

	while (stream && !stream->is_dropped)
		stream = stream->next;
	return stream != NULL;
}

void stream_destroy_all(struct context *context)
{
	struct stream *stream;

	if (context->legacy)
		stream_unref(context->legacy);
	context->legacy = NULL;

	for (stream = context->streams; stream; stream = stream->next) {
		stream->is_dropped = true;
		tell_to_end(stream);
	}
	process_wake();
	/* A new context uses the same struct, so no stream may use it any
	 * more. */
	while (has_dropped(context) && !process.is_stopping)
		process_wait();
	stream_reap();
}

void stream_stop_all(void)
{
	struct stream *stream;

	for (int i = 0; i < device_count(); i++) {
		stream = context_of(i)->streams;
		for (; stream; stream = stream->next)
			pthread_cond_signal(&stream->arrival);
	}
}

/* --- the queue ----------------------------------------------------------- */

static void append(struct stream *stream, struct work *work)
{
	work->stream = stream;
	work->next = NULL;
	work->queued_at = mapping_clock();
	*stream->last = work;
	stream->last = &work->next;
	stream->n_queued++;
	queue_give(stream->queue, work);
	pthread_cond_signal(&stream->arrival);
}

bool stream_is_useless(const struct stream *stream)
{
	return stream->context->error || stream->is_dropped ||
	       process.is_stopping;
}

bool stream_is_stopping(const struct stream *stream)
{
	bool r;

	process_lock();
	r = stream_is_useless(stream);
	process_unlock();
	return r;
}

static CUresult run_turn(struct work *work)
{
	struct turn *turn = (struct turn *)work;

	process_lock();
	while (turn->other->n_done < turn->n &&
	       !stream_is_useless(work->stream))
		process_wait();
	process_unlock();
	return CUDA_SUCCESS;
}

static void end_turn(struct work *work, bool is_done)
{
	(void)is_done;
	stream_unref(((struct turn *)work)->other);
	free(work);
}

/* Makes work that is queued from now on wait for the present work of
 * `other`. */
static void take_turn(struct stream *stream, struct stream *other)
{
	struct turn *turn;

	if (other == stream || other->n_done == other->n_queued)
		return;
	turn = calloc(1, sizeof(*turn));
	if (!turn)
		settings_refuse("no memory for a stream's order");
	turn->work.run = run_turn;
	turn->work.end = end_turn;
	turn->work.is_quick = true;
	turn->work.is_wait = true;
	turn->other = other;
	turn->n = other->n_queued;
	other->n_refs++;
	append(stream, &turn->work);
}

void stream_enqueue(struct stream *stream, struct work *work)
{
	struct context *context = stream->context;
	struct stream *other;

	if (stream == context->legacy) {
		for (other = context->streams; other; other = other->next) {
			if (other->is_blocking)
				take_turn(stream, other);
		}
	} else if (stream->is_blocking && context->legacy) {
		take_turn(stream, context->legacy);
	}
	append(stream, work);
}

bool stream_is_idle(const struct stream *stream)
{
	const struct stream *other;

	if (stream->n_done < stream->n_queued)
		return false;
	if (stream != stream->context->legacy)
		return true;
	for (other = stream->context->streams; other; other = other->next) {
		if (other->is_blocking && other->n_done < other->n_queued)
			return false;
	}
	return true;
}

/* --- waiting for it ------------------------------------------------------ */

static CUresult wait_for(struct stream *stream, uint64_t n)
{
	CUresult r;

	stream->n_refs++;
	while (stream->n_done < n && !process.is_stopping)
		process_wait();
	if (process.is_stopping)
		r = CUDA_ERROR_DEINITIALIZED;
	else if (stream->is_dropped)
		r = CUDA_ERROR_CONTEXT_IS_DESTROYED;
	else
		r = context_check(stream->context);
	stream_unref(stream);
	return r;
}

CUresult stream_synchronize(struct stream *stream)
{
	struct work *work;

	/* The legacy stream only waits for the other streams when it gets work,
	 * so it gets some. */
	if (stream == stream->context->legacy) {
		work = calloc(1, sizeof(*work));
		if (!work)
			return CUDA_ERROR_OUT_OF_MEMORY;
		work->is_quick = true;
		stream_enqueue(stream, work);
	}
	return wait_for(stream, stream->n_queued);
}

/* Finds a stream that has marked work to do. */
static struct stream *find_busy(const struct context *context)
{
	struct stream *stream;

	for (stream = context->streams; stream; stream = stream->next) {
		if (stream->n_done < stream->n_marked)
			return stream;
	}
	return NULL;
}

CUresult stream_synchronize_all(struct context *context)
{
	CUcontext handle = context->handle;
	struct stream *stream;

	/* Wait only for present work, because other threads may add more. */
	for (stream = context->streams; stream; stream = stream->next)
		stream->n_marked = stream->n_queued;
	while (find_busy(context) && !process.is_stopping)
		process_wait();
	if (process.is_stopping)
		return CUDA_ERROR_DEINITIALIZED;
	return context->handle == handle ? context_check(context)
					 : CUDA_ERROR_CONTEXT_IS_DESTROYED;
}

CUresult stream_await_memory(void)
{
	while (process.n_holds > 0 && !process.is_stopping)
		process_wait();
	return process.is_stopping ? CUDA_ERROR_DEINITIALIZED : CUDA_SUCCESS;
}

CUresult stream_synchronize_maybe(struct context *context)
{
	CUresult r = stream_await_memory();

	if (r)
		return r;
	return settings()->does_sync ? stream_synchronize_all(context)
				     : CUDA_SUCCESS;
}

void fake_hold_memory(bool is_held)
{
	process_lock();
	process.n_holds += is_held ? 1 : -1;
	process_wake();
	process_unlock();
}

/* --- the thread ---------------------------------------------------------- */

/* NULL if the stream has ended */
static struct work *take(struct stream *stream)
{
	struct work *work;

	while (!stream->first) {
		if (stream->is_destroyed || process.is_stopping)
			return NULL;
		process_wait_on(&stream->arrival);
	}
	work = stream->first;
	stream->first = work->next;
	if (!stream->first)
		stream->last = &stream->first;
	return work;
}

/* Half of all work is not delayed, so that fast work meets slow work. */
static void delay(struct stream *stream)
{
	uint64_t random = stream->random;

	random ^= random << 13;
	random ^= random >> 7;
	random ^= random << 17;
	stream->random = random;
	if (settings()->delay_us > 0 && random & 1)
		sleep_us((random >> 1) % (settings()->delay_us + 1));
}

static CUresult run(void *data)
{
	struct work *work = data;

	return work->run(work);
}

/* Releases the lock meanwhile. */
static bool perform(struct stream *stream, struct work *work)
{
	CUdevice device = stream->context->device;
	CUresult r;

	if (stream_is_useless(stream))
		return false;
	if (!work->run)
		return true;
	process_unlock();
	if (!work->is_quick)
		delay(stream);
	r = device_check(device);
	if (r == CUDA_SUCCESS)
		r = guard_run(run, work);
	process_lock();
	if (r && !stream->is_dropped)
		context_fail(stream->context, r);
	return r == CUDA_SUCCESS;
}

static void *serve(void *data)
{
	struct stream *stream = data;
	struct work *work;
	uint64_t place;
	bool is_done;

	/* without this, each delay would be 50 us longer */
	prctl(PR_SET_TIMERSLACK, 1);
	guard_allow(true);
	process_lock();
	while ((work = take(stream))) {
		place = work->place;
		queue_await(stream->queue, work);
		if (!work->is_wait)
			queue_pass(stream->queue, place);
		is_done = perform(stream, work);
		if (work->end)
			work->end(work, is_done);
		else
			free(work);
		queue_pass(stream->queue, place);
		stream->n_done++;
		process_wake();
	}
	unlink_stream(stream);
	stream->has_ended = true;
	stream->next = ended;
	ended = stream;
	process.n_threads--;
	process_wake();
	process_unlock();
	return NULL;
}
