/*
 * A file that tensors are read from. Bytes go straight from the page cache
 * into the tensor's memory, or into what a device copies from, by large preads
 * in the order of the file, so that the kernel reads ahead while we copy.
 * Asking it by readahead() for more was measured, and slower.
 */
#include "client/ctl/input.h"

#include "client/ctl/broker.h"
#include "client/ctl/interrupt.h"
#include "client/ctl/npy.h"
#include "client/ctl/progress.h"
#include "client/fsdp.h"
#include "proto/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PIECE ((uint64_t)8 << 20)

int input_open(const char *path, struct input *ret, struct error *err)
{
	struct stat status;
	int fd, r;

	/* NONBLOCK: a FIFO must not hold us before it is refused */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return error_errno(err, -errno, "open %s", path);
	if (fstat(fd, &status) < 0) {
		r = error_errno(err, -errno, "look at %s", path);
		goto refuse;
	}
	if (!S_ISREG(status.st_mode)) {
		r = error_set(err, -EINVAL, "%s is no regular file", path);
		goto refuse;
	}
	(void)posix_fadvise(fd, 0, 0, POSIX_FADV_SEQUENTIAL);
	*ret = (struct input){
		.fd = fd, .path = path, .size = (uint64_t)status.st_size};
	return 0;
refuse:
	(void)close(fd);
	return r;
}

void input_close(struct input *input)
{
	if (input->fd >= 0)
		(void)close(input->fd);
	*input = INPUT_NULL;
}

static int find_raw(const struct input *input, const struct tensor_type *raw,
		    struct safetensors_entry *ret, struct error *err)
{
	uint64_t size;
	int r;

	if (!raw)
		return error_set(err, -EINVAL,
				 "a .raw file says nothing about its tensor: "
				 "give --dtype and --shape");
	*ret = (struct safetensors_entry){.type = *raw};
	tensor_type_contiguous(&ret->type);
	r = tensor_type_check(&ret->type, &size, err);
	if (r < 0)
		return r;
	if (size != input->size)
		return error_set(err, -EINVAL,
				 "--dtype and --shape need %" PRIu64
				 " bytes, the file has %" PRIu64,
				 size, input->size);
	ret->size = size;
	return 0;
}

static int find_npy(const struct input *input, struct safetensors_entry *ret,
		    struct error *err)
{
	struct npy npy;
	int r = npy_read(input->fd, &npy, err);

	if (r < 0)
		return r;
	*ret = (struct safetensors_entry){
		.type = npy.type, .offset = npy.offset, .size = npy.size};
	return 0;
}

static int find_single(const struct input *input, struct safetensors_entry *ret,
		       struct error *err)
{
	struct safetensors safetensors;
	int r = safetensors_read(input->fd, &safetensors, err);

	if (r < 0)
		return r;
	if (safetensors.n_entries == 1) {
		*ret = safetensors.entries[0];
		ret->name = NULL;
	} else {
		r = error_set(err, -EINVAL,
			      "it has %zu tensors, not one: use fsdpctl load",
			      safetensors.n_entries);
	}
	safetensors_deinit(&safetensors);
	return r;
}

int input_find_tensor(const struct input *input, const struct tensor_type *raw,
		      struct safetensors_entry *ret, struct error *err)
{
	const char *suffix = strrchr(input->path, '.');
	int r;

	if (!suffix)
		suffix = "";
	if (raw && strcmp(suffix, ".raw") != 0)
		r = error_set(err, -EINVAL,
			      "--dtype and --shape are for .raw files only");
	else if (strcmp(suffix, ".raw") == 0)
		r = find_raw(input, raw, ret, err);
	else if (strcmp(suffix, ".npy") == 0)
		r = find_npy(input, ret, err);
	else if (strcmp(suffix, ".safetensors") == 0)
		r = find_single(input, ret, err);
	else
		r = error_set(
			err, -EINVAL,
			"its name must end in .npy, .safetensors or .raw");
	if (r < 0)
		return error_wrap(err, r, "%s", input->path);
	return 0;
}

static int read_bytes(const struct input *input, uint64_t offset, void *into,
		      uint64_t size, struct progress *progress,
		      struct error *err)
{
	char *p = into;

	while (size) {
		uint64_t piece = size < PIECE ? size : PIECE;
		ssize_t n;
		int r = interrupt_check(err);

		if (r < 0)
			return r;
		n = pread(input->fd, p, piece, (off_t)offset);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return error_errno(err, -errno, "read %s", input->path);
		if (n == 0)
			return error_set(err, -EIO,
					 "%s got shorter while it was read",
					 input->path);
		p += n;
		offset += (uint64_t)n;
		size -= (uint64_t)n;
		progress_add(progress, (uint64_t)n);
	}
	return 0;
}

/* Tensors that are being filled, and how far. */
struct filling {
	const struct input *input;
	const struct safetensors_entry *entries;
	struct progress *progress;
	size_t i;
	uint64_t done; /* bytes of the i-th */
	struct error err;
};

static int read_next(size_t i, void *into, size_t size, void *data)
{
	struct filling *filling = data;
	int r;

	if (i != filling->i)
		filling->done = 0;
	filling->i = i;
	r = read_bytes(filling->input,
		       filling->entries[i].offset + filling->done, into, size,
		       filling->progress, &filling->err);
	filling->done += size;
	return r;
}

int input_fill(const struct input *input,
	       const struct safetensors_entry *entries,
	       struct fsdp_tensor *const *tensors, size_t n,
	       struct progress *progress, struct error *err)
{
	struct filling filling = {.input = input,
				  .entries = entries,
				  .progress = progress,
				  .err = ERROR_NULL};
	int r = fsdp_fill(tensors, n, read_next, &filling);

	if (filling.err.code < 0)
		return error_set(err, filling.err.code, "%s", filling.err.msg);
	return r < 0 ? broker_failed(err, r) : 0;
}
