/*
 * Clients that wait only briefly for a broker that is away.
 */
#pragma once
#include "client/fsdp.h"
#include <stdint.h>

/* Connects, however long that takes: the same limit applies to the broker's
 * reply, and a loaded machine may be slower. */
struct fsdp_client *connect_impatiently(const char *path, int32_t reconnect_ms);
