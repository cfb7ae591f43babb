/*
 * Connections whose requests can be sent again, and sessions that come back on
 * another connection.
 */
#pragma once
#include "tests/lib/wire.h"

/* wire_connect() and hello; it never tells the broker which replies were read,
 * so that every number can be repeated. */
struct wire *repeat_open(const char *path);
/* The hello by which another connection takes over this one's session. */
struct request wire_reconnect_hello(const struct wire *wire);
/* Send it to take over the session of `from`, with these fds; gives the code.
 */
int wire_reconnect(struct wire *wire, const struct wire *from,
		   const struct request *hello, int refs_fd, int doorbell_fd);

struct request wire_get_request(const char **name, int32_t timeout_ms);
/* Makes a tensor of `size` bytes, which stays held, and publishes it. */
struct tensor_place repeat_put(struct wire *wire, const char *name,
			       int64_t size);
/* The number of holds of `name` that the broker counts for the session. */
int64_t wire_count_holds(struct wire *wire, const char *name);
