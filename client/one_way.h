/*
 * One-way requests: the broker replies only to refuse them.
 */
#pragma once

struct connection;
struct error;
struct one_way; /* in call.h */
struct request;

/*
 * Send a request without waiting for its reply; the broker replies only to
 * refuse it. It is sent before this thread's next request, and again after a
 * reconnect. If it is refused, the function of `one_way` is called before the
 * next call of this thread returns. If too many one-way requests are under way,
 * this function waits for the reply and returns a refusal.
 */
int connection_send_one_way(struct connection *connection,
			    const struct request *request,
			    const struct one_way *one_way, struct error *err);

/* Report no further refusals for `data`, which becomes invalid. */
void connection_forget_one_way(struct connection *connection, const void *data);
