/*
 * Functions of bundles for other files: to close a connection, and the steps of
 * a get, which may wait (bundle.c) or not (pending.c).
 */
#pragma once
#include <stddef.h>

struct error;
struct fsdp_client;
struct fsdp_get_options;
struct fsdp_tensor;
struct received;
struct request;

/* Free all bundles that are being staged; the broker aborts them when the
 * session ends. */
void bundle_free_all(struct fsdp_client *client);

/* Check the arguments, copy the options (which may have the size of an older
 * release), and fill in the request, which borrows the name. */
int bundle_get_request(const struct fsdp_client *client, const char *name,
		       const struct fsdp_get_options *given,
		       struct fsdp_get_options *ret_options,
		       struct request *ret, struct error *err);

/* Make handles of the members that the broker granted. Consumes the reply, also
 * on failure. */
int bundle_get_adopt(struct fsdp_client *client, struct received *received,
		     const struct fsdp_get_options *options,
		     struct fsdp_tensor ***ret, size_t *ret_n,
		     struct error *err);
