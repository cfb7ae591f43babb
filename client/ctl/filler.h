/*
 * Fills tensors from files and computes their digests. Tensors in host memory
 * are filled by several threads (transfer.h), those on devices through the
 * staging buffers of libfsdp.
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
 * Fills `n` tensors with the data of the entries and stores their digests. Both
 * are complete when filler_wait() returns; until then all arguments must stay
 * valid. An error is returned if the file has become shorter, or if interrupt.h
 * has noted a signal (-EINTR).
 */
int filler_add(struct filler *filler, const struct input *input,
	       const struct safetensors_entry *entries,
	       struct fsdp_tensor *const *tensors, size_t n,
	       uint64_t *ret_digests, struct error *err);
int filler_wait(struct filler *filler, struct error *err);
/* Cancels what is not done yet. */
void filler_stop(struct filler *filler);
