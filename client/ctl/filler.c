/*
 * Fills tensors from files. The bytes are read from the page cache directly
 * into the tensor's memory, or into the buffer from which a device copies.
 */
#include "client/ctl/filler.h"

#include "client/ctl/broker.h"
#include "client/ctl/contents.h"
#include "client/ctl/input.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/progress.h"
#include "client/ctl/transfer.h"
#include "proto/error.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <unistd.h>
#include <xxhash.h>

#define PIECE ((uint64_t)8 << 20)

/* --- devices ------------------------------------------------------------- */

/* The tensors of one batch, and how many are filled. */
struct filling {
	const struct input *input;
	const struct safetensors_entry *entries;
	struct progress *progress;
	XXH3_state_t *state;
	uint64_t *digests;
	size_t i;
	uint64_t done; /* bytes of tensor `i` that are filled */
	struct error err;
};

static int read_bytes(struct filling *filling, uint64_t offset, char *into,
		      uint64_t size)
{
	struct error *err = &filling->err;

	while (size) {
		uint64_t piece = size < PIECE ? size : PIECE;
		ssize_t n;
		int r = interrupt_check(err);

		if (r < 0)
			return r;
		n = pread(filling->input->fd, into, piece, (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno, "cannot read %s",
					   filling->input->path);
		if (n == 0)
			return error_set(
				err, -EIO,
				"cannot read %s: it became shorter meanwhile; "
				"try again when no program writes it",
				filling->input->path);
		into += n;
		offset += (uint64_t)n;
		size -= (uint64_t)n;
		progress_add(filling->progress, (uint64_t)n);
	}
	return 0;
}

static int read_next(size_t i, void *into, size_t size, void *data)
{
	struct filling *filling = data;
	int r;

	if (i != filling->i || filling->done == 0) {
		filling->done = 0;
		XXH3_64bits_reset(filling->state);
	}
	filling->i = i;
	r = read_bytes(filling, filling->entries[i].offset + filling->done,
		       into, size);
	if (r < 0)
		return r;
	XXH3_64bits_update(filling->state, into, size);
	filling->done += size;
	if (filling->done == filling->entries[i].size)
		filling->digests[i] = XXH3_64bits_digest(filling->state);
	return 0;
}

static int fill_on_device(const struct filler *filler,
			  const struct input *input,
			  const struct safetensors_entry *entries,
			  struct fsdp_tensor *const *tensors, size_t n,
			  uint64_t *ret_digests, struct error *err)
{
	struct filling filling = {.input = input,
				  .entries = entries,
				  .progress = filler->progress,
				  .state = XXH3_createState(),
				  .digests = ret_digests,
				  .err = ERROR_NULL};
	int r;

	if (!filling.state)
		return error_nomem(err, "a digest");
	/* set these first, because read_next() is not called for empty
	 * tensors */
	for (size_t i = 0; i < n; i++)
		ret_digests[i] = XXH3_64bits(NULL, 0);
	r = fsdp_fill(tensors, n, read_next, &filling);
	XXH3_freeState(filling.state);
	if (filling.err.code < 0)
		return error_set(err, filling.err.code, "%s", filling.err.msg);
	return r < 0 ? broker_failed(err, r) : 0;
}

/* --- host ---------------------------------------------------------------- */

static int fill_on_host(const struct filler *filler, const struct input *input,
			const struct safetensors_entry *entry,
			struct fsdp_tensor *tensor, uint64_t *ret_digest,
			struct error *err)
{
	struct transfer_job job = {.direction = TRANSFER_READ,
				   .fd = input->fd,
				   .path = input->path,
				   .offset = entry->offset,
				   .memory = fsdp_data_mut(tensor),
				   .size = entry->size,
				   .ret_digest = ret_digest};

	return transfer_add(filler->transfer, &job, err);
}

int filler_start(struct progress *progress, struct filler *ret,
		 struct error *err)
{
	*ret = (struct filler){.progress = progress};
	return transfer_start(progress, &ret->transfer, err);
}

int filler_add(struct filler *filler, const struct input *input,
	       const struct safetensors_entry *entries,
	       struct fsdp_tensor *const *tensors, size_t n,
	       uint64_t *ret_digests, struct error *err)
{
	int r = 0;

	/* All tensors of a batch are on one device, but empty ones count as
	 * host memory, so all must be checked. */
	for (size_t i = 0; i < n; i++)
		if (!contents_is_on_host(tensors[i]))
			return fill_on_device(filler, input, entries, tensors,
					      n, ret_digests, err);
	for (size_t i = 0; r == 0 && i < n; i++)
		r = fill_on_host(filler, input, &entries[i], tensors[i],
				 &ret_digests[i], err);
	return r;
}

int filler_wait(struct filler *filler, struct error *err)
{
	return transfer_wait(filler->transfer, err);
}

void filler_stop(struct filler *filler)
{
	transfer_stop(filler->transfer);
	filler->transfer = NULL;
}
