/*
 * Sending and receiving the frames of a connection, with its lock held.
 */
#pragma once

struct call;
struct connection;
struct error;

/* Give the call a number and send it, as far as the socket takes it. */
void exchange_send(struct connection *c, struct call *call);

/* One round of the reader on a connection: send, wait, receive, without the
 * lock meanwhile. Negative: give up what is under way; FRAME_AGAIN: nothing
 * came. */
int exchange_once(struct connection *c, struct call *mine, struct error *err);

/* Everyone who waits gets the error; their threads take the calls away. */
void exchange_fail_all(struct connection *c, const struct error *err);

/* The answer of a call that nobody waits for is there: return what it granted,
 * tell a refusal, or send a posted call again. */
void exchange_end_orphan(struct connection *c, struct call *call);

/* What is begun, and landed, or sent, or the socket has changed. */
void exchange_update_poll(struct connection *c);
