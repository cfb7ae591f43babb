/*
 * The contents of a tensor in row-major order, on the host or a device and with
 * any strides.
 */
#pragma once
#include "client/ctl/pack.h"
#include "client/fsdp.h"
#include "proto/tensor.h"

#include <stdbool.h>
#include <stdint.h>

struct error;

/* Gets and holds a tensor, or all members of a bundle. The caller frees each
 * handle by fsdp_free(), and the array by free(). `options` may be NULL. */
int contents_hold(struct fsdp_client *client, const char *name,
		  const struct fsdp_get_options *options,
		  struct fsdp_tensor ***ret, size_t *ret_n, struct error *err);

/* Gets the type, with the strides in memory. */
void contents_type(const struct fsdp_tensor *tensor, struct tensor_type *ret);

bool contents_is_on_host(const struct fsdp_tensor *tensor);

/* Returns the contents if they are contiguous in host memory, else NULL. */
const void *contents_address(const struct fsdp_tensor *tensor);

/* Passes the contents to `write` in pieces. Those on a device are copied to the
 * host first. `cast` has the same meaning as for pack_write(). */
int contents_write(struct fsdp_tensor *tensor, uint32_t cast, pack_fn *write,
		   void *data, struct error *err);

/* Computes the XXH3 of the contents. */
int contents_digest(struct fsdp_tensor *tensor, uint64_t *ret,
		    struct error *err);
