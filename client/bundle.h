/*
 * The part of bundles that are being staged which closing a connection needs.
 */
#pragma once

struct fsdp_client;

/* Forget all of them; the broker aborts them when the session ends. */
void bundle_free_all(struct fsdp_client *client);
