/*
 * The only part of the exporter that speaks to the broker: one thread with one
 * connection, so that there is never more than one request under way, however
 * many scrapers ask.
 *
 * A document is made when somebody asks for it and the last one is older than
 * COLLECTOR_FRESH_MS. Whoever asks meanwhile gets the same one.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collector;
struct error;

#define COLLECTOR_FRESH_MS 250
/* A broker that takes longer is away. */
#define COLLECTOR_PATIENCE_MS 3000

enum collector_document { COLLECTOR_METRICS, COLLECTOR_STATUS, COLLECTOR_N };

/* Whoever waits for a document. */
struct collector_waiter {
	enum collector_document wanted;
	/* Called once, on another thread: the document is there, or will not
	 * be. */
	void (*wake)(struct collector_waiter *waiter);
	uint64_t since_ms;
	struct collector_waiter *next;
};

/* `socket`: of the broker, borrowed; NULL: the usual places. */
int collector_start(const char *socket, struct collector **ret,
		    struct error *err);
/* Wake all waiters, and let no more wait. The thread goes on. */
void collector_close(struct collector *collector);
/* After collector_close(), at the end of the process. If the thread waits for a
 * broker that does not answer, it is left alone. */
void collector_free(struct collector *collector);

/* A copy of the last document, unless it is older than `max_age_ms`; the
 * caller frees it. NULL: there is none. */
char *collector_get(struct collector *collector, enum collector_document which,
		    uint64_t max_age_ms, size_t *ret_size);
/* Have a fresh document made, and `waiter` (borrowed until then) woken when it
 * is there: at once, if the collector is closed. */
void collector_wait(struct collector *collector,
		    struct collector_waiter *waiter);

/* Wake those who have waited too long. */
void collector_check(struct collector *collector);

/* Did the broker answer lately? */
bool collector_is_up(struct collector *collector);
