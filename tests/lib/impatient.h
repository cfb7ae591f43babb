/*
 * Clients that wait only briefly for a broker that is away.
 */
#pragma once
#include "client/fsdp.h"
#include <stdint.h>

/* Connect, however long that takes: the same limit holds for the broker's
 * answer, and a machine under load may be slower. */
struct fsdp_client *connect_impatiently(const char *path, int32_t reconnect_ms);
