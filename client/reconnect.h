/*
 * Connects, and reconnects after the connection was lost.
 */
#pragma once

struct call;
struct connection;
struct error;
struct greeting;

/* Connect for the first time. If no broker listens, this fails at once; it
 * waits, up to reconnect_ms, if the backlog is full or the broker closes the
 * connection because it is being replaced. */
int reconnect_first(struct connection *c, struct greeting *ret,
		    struct error *err);

/*
 * Reconnect, as the reader, whose own call is `mine`; afterwards all calls must
 * be sent again. The lock is released meanwhile. Returns 0 also if `mine` was
 * interrupted. -ESTALE: the session is lost for good.
 */
int reconnect(struct connection *c, struct call *mine, struct error *err);

/* Try once to reconnect, as the reader, without the waits of reconnect(). */
void reconnect_once(struct connection *c);
