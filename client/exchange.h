/*
 * Sends and receives the frames of a connection. Callers hold its lock.
 */
#pragma once
#include <stdbool.h>

struct call;
struct connection;
struct error;

/* Give the call a number, and send as much of the unsent calls as the socket
 * accepts. */
void exchange_send(struct connection *c, struct call *call);

/* Close the socket. The reader then reconnects. */
void exchange_disconnect(struct connection *c);

/* Disconnect if the program has closed the socket, or has opened another file
 * under its number; the reader then reconnects. Sending checks this, too, so
 * only a thread that waits for a call that was sent before needs this
 * function. */
void exchange_check_socket(struct connection *c);

/* Do one round of the reader on a connected socket: send, wait, receive. The
 * lock is released during the wait. If a signal or the time ended the wait, set
 * `*is_cut`, also if something was received then. FRAME_AGAIN: nothing was
 * received. Negative: the calls under way must fail. */
int exchange_once(struct connection *c, struct call *mine, bool *is_cut,
		  struct error *err);

/* Fail all calls that a thread waits for; each of these threads removes its
 * call. */
void exchange_fail_all(struct connection *c, const struct error *err);

/* End a call that no thread waits for, after its reply was received: return its
 * grants, report a refusal, or send a one-way request again. */
void exchange_end_orphan(struct connection *c, struct call *call);

/* Update the descriptor of the poller, after begun calls were completed or
 * sent, or the socket has changed. */
void exchange_update_poll(struct connection *c);
