#include "client/exporter/collector.h"
#include "client/exporter/documents.h"
#include "client/exporter/history.h"
#include "client/fsdp.h"
#include "proto/error.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define RECONNECT_MS 1000
/* How long the end of the process waits for a request to the broker. */
#define END_S 2

struct document {
	char *text; /* owned; NULL: there is none yet */
	size_t size;
	uint64_t made_ms; /* when the request to the broker began */
};

struct collector {
	const char *socket;
	pthread_t thread;
	/* Only the thread uses these: */
	struct fsdp_client *client; /* NULL: not connected */
	struct history history;
	uint64_t sample_ms; /* when the next sample is due */
	bool is_away;       /* the log says that the broker does not answer */
	/* Protected by the lock: */
	pthread_mutex_t lock;
	pthread_cond_t work;
	struct document documents[COLLECTOR_N];
	struct collector_waiter *waiters;
	uint64_t answered_ms; /* when the broker last answered; 0: never */
	bool is_closed, is_ending;
};

static uint64_t clock_ms(clockid_t clock)
{
	struct timespec now;

	clock_gettime(clock, &now);
	return (uint64_t)now.tv_sec * 1000 + (uint64_t)now.tv_nsec / 1000000;
}

static uint64_t monotonic_ms(void)
{
	return clock_ms(CLOCK_MONOTONIC);
}

/* --- the broker ---------------------------------------------------------- */

static void disconnect(struct collector *collector)
{
	fsdp_close(collector->client);
	collector->client = NULL;
}

/*
 * A connection goes on by itself when the broker is there again, and only one
 * whose session is lost is replaced. If it was closed while the broker is away,
 * its session would stay until this process ends.
 */
static int connect_broker(struct collector *collector)
{
	struct fsdp_connect_options options = {.path = collector->socket,
					       .reconnect_ms = RECONNECT_MS};
	int r = collector->client ? fsdp_ping(collector->client) : -ESTALE;

	if (r != -ESTALE && r != -EBADF)
		return r;
	disconnect(collector);
	return fsdp_connect(&options, &collector->client);
}

/* Log why the broker does not answer, and that it does again. `r` is the result
 * of the last request. */
static void log_change(struct collector *collector, int r)
{
	if ((r < 0) == collector->is_away)
		return;
	collector->is_away = r < 0;
	fprintf(stderr, "fsdp-exporter: %s\n",
		r < 0 ? fsdp_error() : "the broker answers again");
}

static void add_sample(struct collector *collector)
{
	uint64_t at_ms = clock_ms(CLOCK_REALTIME), now_ms = monotonic_ms();
	struct snapshot snapshot = SNAPSHOT_NULL;
	int r = connect_broker(collector);

	if (r == 0)
		r = snapshot_read_counters(collector->client, &snapshot);
	log_change(collector, r);
	if (r == 0) {
		history_add(&collector->history, &snapshot, at_ms, now_ms);
		pthread_mutex_lock(&collector->lock);
		collector->answered_ms = monotonic_ms();
		pthread_mutex_unlock(&collector->lock);
	} else {
		history_add_gap(&collector->history, at_ms);
	}
	snapshot_deinit(&snapshot);
}

/* Make the documents; `*status` only if `wants_status`. */
static int ask(struct collector *collector, bool wants_status, char **metrics,
	       size_t *metrics_size, char **status)
{
	struct snapshot snapshot = SNAPSHOT_NULL;
	int r = connect_broker(collector);

	if (r == 0)
		r = snapshot_read(collector->client, &snapshot);
	if (r == 0 && wants_status)
		*status = documents_status(collector->client, &snapshot,
					   &collector->history, &r);
	if (r == 0)
		*metrics = documents_metrics(&snapshot, metrics_size);
	snapshot_deinit(&snapshot);
	return r;
}

/* Keep a document as the last one. The lock is held. Consumes `text`; NULL is
 * ignored. */
static void store(struct collector *collector, enum collector_document which,
		  char *text, size_t size, uint64_t made_ms)
{
	struct document *document = &collector->documents[which];

	if (!text)
		return;
	free(document->text);
	*document = (struct document){text, size, made_ms};
}

/* Wake all waiters for `which` that began to wait at `until_ms` or before. The
 * lock is held. */
static void wake(struct collector *collector, enum collector_document which,
		 uint64_t until_ms)
{
	struct collector_waiter **link = &collector->waiters, *waiter;

	while ((waiter = *link)) {
		if (waiter->wanted == which && waiter->since_ms <= until_ms) {
			*link = waiter->next;
			waiter->wake(waiter);
		} else {
			link = &waiter->next;
		}
	}
}

static void collect(struct collector *collector, bool wants_status)
{
	uint64_t at_ms = monotonic_ms();
	char *metrics = NULL, *status = NULL;
	size_t size = 0;
	int r = ask(collector, wants_status, &metrics, &size, &status);

	if (r < 0) {
		status = documents_away(fsdp_error(), &collector->history);
		metrics = documents_metrics(NULL, &size);
	}
	pthread_mutex_lock(&collector->lock);
	collector->answered_ms = r < 0 ? 0 : monotonic_ms();
	store(collector, COLLECTOR_METRICS, metrics, size, at_ms);
	store(collector, COLLECTOR_STATUS, status, status ? strlen(status) : 0,
	      at_ms);
	/* This includes waiters that came during the request, because the
	 * documents are fresh. */
	wake(collector, COLLECTOR_METRICS, UINT64_MAX);
	if (wants_status || r < 0)
		wake(collector, COLLECTOR_STATUS, UINT64_MAX);
	pthread_mutex_unlock(&collector->lock);
}

/* --- the thread ---------------------------------------------------------- */

/* Tell whether there are waiters, and whether any of them wants the status. The
 * lock is held. */
static bool is_wanted(const struct collector *collector, bool *ret_status)
{
	const struct collector_waiter *waiter = collector->waiters;

	*ret_status = false;
	for (; waiter; waiter = waiter->next)
		*ret_status |= waiter->wanted == COLLECTOR_STATUS;
	return collector->waiters != NULL;
}

/* Sleep until there is a waiter or a sample is due. The lock is held. */
static void wait_for_work(struct collector *collector)
{
	struct timespec until = {
		.tv_sec = (time_t)(collector->sample_ms / 1000),
		.tv_nsec = (long)(collector->sample_ms % 1000) * 1000000,
	};

	while (!collector->is_ending && !collector->waiters)
		if (pthread_cond_timedwait(&collector->work, &collector->lock,
					   &until) == ETIMEDOUT)
			return;
}

static void *run(void *data)
{
	struct collector *collector = data;
	bool wants, wants_status;

	pthread_mutex_lock(&collector->lock);
	while (!collector->is_ending) {
		wants = is_wanted(collector, &wants_status);
		pthread_mutex_unlock(&collector->lock);
		if (wants)
			collect(collector, wants_status);
		if (monotonic_ms() >= collector->sample_ms) {
			collector->sample_ms = monotonic_ms() + HISTORY_STEP_MS;
			add_sample(collector);
		}
		pthread_mutex_lock(&collector->lock);
		wait_for_work(collector);
	}
	pthread_mutex_unlock(&collector->lock);
	return NULL;
}

/* --- calls from other threads -------------------------------------------- */

int collector_start(const char *socket, struct collector **ret,
		    struct error *err)
{
	struct collector *collector = calloc(1, sizeof(*collector));
	pthread_condattr_t attr;
	int r;

	if (!collector)
		return error_nomem(err, "a collector");
	collector->socket = socket;
	pthread_mutex_init(&collector->lock, NULL);
	pthread_condattr_init(&attr);
	pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
	pthread_cond_init(&collector->work, &attr);
	pthread_condattr_destroy(&attr);
	r = pthread_create(&collector->thread, NULL, run, collector);
	if (r != 0) {
		free(collector);
		return error_errno(err, -r, "cannot start a thread");
	}
	*ret = collector;
	return 0;
}

void collector_close(struct collector *collector)
{
	pthread_mutex_lock(&collector->lock);
	collector->is_closed = true;
	for (int i = 0; i < COLLECTOR_N; i++)
		wake(collector, (enum collector_document)i, UINT64_MAX);
	pthread_mutex_unlock(&collector->lock);
}

void collector_free(struct collector *collector)
{
	struct timespec until;

	pthread_mutex_lock(&collector->lock);
	collector->is_ending = true;
	pthread_cond_signal(&collector->work);
	pthread_mutex_unlock(&collector->lock);
	clock_gettime(CLOCK_REALTIME, &until);
	until.tv_sec += END_S;
	if (pthread_timedjoin_np(collector->thread, NULL, &until) != 0)
		return;
	disconnect(collector);
	history_deinit(&collector->history);
	for (int i = 0; i < COLLECTOR_N; i++)
		free(collector->documents[i].text);
	pthread_cond_destroy(&collector->work);
	pthread_mutex_destroy(&collector->lock);
	free(collector);
}

static char *copy(const struct document *document, size_t *ret_size)
{
	char *text = malloc(document->size + 1);

	if (!text)
		return NULL;
	memcpy(text, document->text, document->size);
	*ret_size = document->size;
	return text;
}

char *collector_get(struct collector *collector, enum collector_document which,
		    uint64_t max_age_ms, size_t *ret_size)
{
	const struct document *document = &collector->documents[which];
	char *text = NULL;

	pthread_mutex_lock(&collector->lock);
	if (document->text && monotonic_ms() - document->made_ms < max_age_ms)
		text = copy(document, ret_size);
	pthread_mutex_unlock(&collector->lock);
	return text;
}

void collector_wait(struct collector *collector,
		    struct collector_waiter *waiter)
{
	pthread_mutex_lock(&collector->lock);
	if (collector->is_closed) {
		waiter->wake(waiter);
	} else {
		waiter->since_ms = monotonic_ms();
		waiter->next = collector->waiters;
		collector->waiters = waiter;
		pthread_cond_signal(&collector->work);
	}
	pthread_mutex_unlock(&collector->lock);
}

void collector_check(struct collector *collector)
{
	uint64_t now_ms = monotonic_ms();

	if (now_ms < COLLECTOR_PATIENCE_MS)
		return;
	pthread_mutex_lock(&collector->lock);
	for (int i = 0; i < COLLECTOR_N; i++)
		wake(collector, (enum collector_document)i,
		     now_ms - COLLECTOR_PATIENCE_MS);
	pthread_mutex_unlock(&collector->lock);
}

bool collector_is_up(struct collector *collector)
{
	bool is_up;

	pthread_mutex_lock(&collector->lock);
	is_up = collector->answered_ms &&
		monotonic_ms() - collector->answered_ms <
			HISTORY_STEP_MS + COLLECTOR_PATIENCE_MS;
	pthread_mutex_unlock(&collector->lock);
	return is_up;
}
