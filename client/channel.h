/*
 * What closing a connection needs of its channels.
 */
#pragma once
#include <stdbool.h>

struct fsdp_client;

/* Free all of them; the broker ends them with the session. In a forked child
 * their memory is not mapped. */
void channel_free_all(struct fsdp_client *client, bool is_forked);
