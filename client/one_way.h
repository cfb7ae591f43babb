/*
 * One-way requests: the broker replies only to refuse them.
 */
#pragma once

struct connection;
struct error;
struct one_way; /* call.h */
struct request;

/*
 * Send a request without waiting for its reply; the broker replies only to
 * refuse it. It is sent before this thread's next request, and again if the
 * broker goes away. If it is refused, `one_way` is told before the next call of
 * this thread returns. If too many are under way, the call waits for the reply
 * and returns a refusal.
 */
int connection_send_one_way(struct connection *connection,
			    const struct request *request,
			    const struct one_way *one_way, struct error *err);

/* `data` becomes invalid: it is told of no further refusal. */
void connection_forget_one_way(struct connection *connection, const void *data);
