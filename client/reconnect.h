/*
 * Connecting, and connecting again after the connection was lost.
 */
#pragma once

struct call;
struct connection;
struct error;
struct greeting;

/* The absence of a broker is an error at once; the function waits for a full
 * backlog, and for a broker that is being replaced. */
int reconnect_first(struct connection *c, struct greeting *ret,
		    struct error *err);

/*
 * The reader, for whom `mine` waits, connects again; afterwards all calls must
 * be sent again. The lock is released during each attempt. 0 also if `mine` was
 * interrupted. -ESTALE: the session is lost for good.
 */
int reconnect(struct connection *c, struct call *mine, struct error *err);

/* Note that the epoch of the broker at the other end is the table's epoch. */
void reconnect_note_epoch(struct connection *c);
