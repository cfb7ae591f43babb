/*
 * Staging: copying host bytes to a device and back, through two pinned buffers
 * in alternation, so that reading the source overlaps with the copy engine.
 */
#pragma once
#include "cuda/context.h"
#include <stddef.h>

struct staging; /* staging.c; one thread at a time */

/* `size`: of one buffer, bytes; 0: 16 MiB. */
int staging_new(const struct device *device, size_t size, struct staging **ret,
		struct error *err);
void staging_free(struct staging *staging); /* NULL is fine */

/* Gives the next `size` bytes of the source, all of them: 0, or -errno with its
 * own sentence in err. */
typedef int staging_read_fn(void *data, void *into, size_t size,
			    struct error *err);
/* Done when staging_finish() says so. `read` is called in order, once for each
 * buffer, and its failure given back: nothing is known of the bytes then, but
 * the staging is as good as new. */
int staging_put(struct staging *staging, CUdeviceptr to, uint64_t size,
		staging_read_fn *read, void *data, struct error *err);
int staging_put_bytes(struct staging *staging, CUdeviceptr to, const void *from,
		      uint64_t size, struct error *err);
/* Blocks until all that was put is on the device. */
int staging_finish(struct staging *staging, struct error *err);
/* Blocks until the bytes are in `to`. */
int staging_get(struct staging *staging, void *to, CUdeviceptr from,
		uint64_t size, struct error *err);
