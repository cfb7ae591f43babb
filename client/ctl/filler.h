/*
 * Filling tensors from files, with their digests: those in host memory by
 * several threads (transfer.h), those on devices by libfsdp's staging buffers.
 */
#pragma once
#include "client/ctl/safetensors.h"
#include "client/fsdp.h"

#include <stddef.h>
#include <stdint.h>

struct error;
struct input;
struct progress;
struct transfer;

struct filler {
	struct transfer *transfer;
	struct progress *progress; /* borrowed */
};

int filler_start(struct progress *progress, struct filler *ret,
		 struct error *err);

/*
 * Fill `n` tensors with what the entries say, and store the digests, when
 * filler_wait() returns; all of it stays until then. A file that got shorter is
 * refused, and a signal noted by interrupt.h ends it (-EINTR).
 */
int filler_add(struct filler *filler, const struct input *input,
	       const struct safetensors_entry *entries,
	       struct fsdp_tensor *const *tensors, size_t n,
	       uint64_t *ret_digests, struct error *err);
int filler_wait(struct filler *filler, struct error *err);
/* Drops what is not done. */
void filler_stop(struct filler *filler);
