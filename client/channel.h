/*
 * The function of channels that closes a connection.
 */
#pragma once
#include <stdbool.h>

struct fsdp_client;

/* Free all channels; the broker ends them with the session. In a forked child
 * their shared memory is not mapped, so it is not unmapped. */
void channel_free_all(struct fsdp_client *client, bool is_forked);
