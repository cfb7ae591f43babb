/*
 * Sending and receiving the frames of a connection, with its lock held.
 */
#pragma once

struct call;
struct connection;
struct error;

/* Give the call a number and send as much of it as the socket accepts. */
void exchange_send(struct connection *c, struct call *call);

/* Has the program closed the socket, or opened another file under its number?
 * Then the reader must connect again. For a call that was sent some time ago:
 * sending looks, too. */
void exchange_check_socket(struct connection *c);

/* One round of the reader on a connection: send, wait, receive; the lock is
 * released during the wait. Negative: the calls under way must fail;
 * FRAME_AGAIN: nothing was received. */
int exchange_once(struct connection *c, struct call *mine, struct error *err);

/* Every waiting thread gets the error, and removes its call. */
void exchange_fail_all(struct connection *c, const struct error *err);

/* The reply of a call that no thread waits for was received: return its grants,
 * report a refusal, or send a one-way request again. */
void exchange_end_orphan(struct connection *c, struct call *call);

/* Begun calls were completed or sent, or the socket has changed. */
void exchange_update_poll(struct connection *c);
