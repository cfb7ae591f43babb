/*
 * Connections whose requests can be repeated, and sessions that reconnect on
 * another connection.
 */
#pragma once
#include "tests/lib/wire.h"

/* Connects and sends hello. This connection never tells the broker which
 * replies were read, so all numbers can be repeated. */
struct wire *repeat_open(const char *path);
/* Makes the hello by which another connection takes over this one's session. */
struct request wire_reconnect_hello(const struct wire *wire);
/* Sends the hello with these descriptors, to take over the session of `from`.
 * Returns the code. */
int wire_reconnect(struct wire *wire, const struct wire *from,
		   const struct request *hello, int refs_fd, int doorbell_fd);

struct request wire_get_request(const char **name, int32_t timeout_ms);
/* Makes a tensor of `size` bytes, publishes it, and keeps its hold. */
struct tensor_place repeat_put(struct wire *wire, const char *name,
			       int64_t size);
/* Returns the number of holds of `name` that the broker counts for the
 * session. */
int64_t wire_count_holds(struct wire *wire, const char *name);
