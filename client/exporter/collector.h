/*
 * Collects documents from the broker. Only this part of the exporter sends
 * requests to the broker, from one thread with one connection, so that at most
 * one request is under way, however many scrapers there are.
 *
 * A document is made on request, if the last one is older than
 * COLLECTOR_FRESH_MS. All requests that arrive meanwhile get the same document.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct collector;
struct error;

#define COLLECTOR_FRESH_MS 250
/* If the broker takes longer to reply, it is treated as absent. */
#define COLLECTOR_PATIENCE_MS 3000

enum collector_document { COLLECTOR_METRICS, COLLECTOR_STATUS, COLLECTOR_N };

/* A request that waits for a document. */
struct collector_waiter {
	enum collector_document wanted;
	/* Called once, on another thread: the document has been made, or will
	 * not be made. */
	void (*wake)(struct collector_waiter *waiter);
	uint64_t since_ms;
	struct collector_waiter *next;
};

/* Start the thread. `socket` is the broker's and is borrowed; NULL: the usual
 * places. */
int collector_start(const char *socket, struct collector **ret,
		    struct error *err);
/* Wake all waiters; later ones are woken at once. The thread continues. */
void collector_close(struct collector *collector);
/* End the thread and free everything. Call this after collector_close(), at the
 * end of the process. If the thread still waits for a broker that does not
 * reply, nothing is freed. */
void collector_free(struct collector *collector);

/* Return a copy of the last document, which the caller must free. Returns NULL
 * if there is none, if it is at least `max_age_ms` old, or if there is no
 * memory. */
char *collector_get(struct collector *collector, enum collector_document which,
		    uint64_t max_age_ms, size_t *ret_size);
/* Request a fresh document, and wake `waiter` when it is there, or at once if
 * the collector is closed. `waiter` is borrowed until it is woken. */
void collector_wait(struct collector *collector,
		    struct collector_waiter *waiter);

/* Wake the waiters that have waited for longer than COLLECTOR_PATIENCE_MS. */
void collector_check(struct collector *collector);

/* Tell whether the broker has replied recently. */
bool collector_is_up(struct collector *collector);
