/*
 * The contents of a tensor in row-major order, wherever it is and whatever its
 * strides.
 */
#pragma once
#include "client/ctl/pack.h"
#include "client/fsdp.h"
#include "proto/tensor.h"

#include <stdbool.h>
#include <stdint.h>

struct error;

/* The type as it lies in memory. */
void contents_type(const struct fsdp_tensor *tensor, struct tensor_type *ret);

/* The contents if they lie contiguously in host memory; else NULL. */
const void *contents_address(const struct fsdp_tensor *tensor);

/* Give them to `write` piece by piece, those on a device by copies. `cast` as
 * for pack_write(). */
int contents_write(struct fsdp_tensor *tensor, uint32_t cast, pack_fn *write,
		   void *data, struct error *err);

/* Their XXH3. */
int contents_digest(struct fsdp_tensor *tensor, uint64_t *ret,
		    struct error *err);
