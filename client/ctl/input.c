/* Opens files that tensors are read from. */
#include "client/ctl/input.h"

#include "client/ctl/npy.h"
#include "proto/error.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int input_open(const char *path, struct input *ret, struct error *err)
{
	struct stat status;
	int fd, r;

	/* with O_NONBLOCK a FIFO cannot block the open; it is refused below */
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	if (fd < 0)
		return error_errno(err, -errno, "cannot open %s", path);
	if (fstat(fd, &status) < 0) {
		r = error_errno(err, -errno, "cannot inspect %s", path);
		goto refuse;
	}
	if (!S_ISREG(status.st_mode)) {
		r = error_set(err, -EINVAL, "cannot read %s: %s", path,
			      S_ISDIR(status.st_mode)
				      ? "it is a directory; name a file in it, "
					"such as its .safetensors.index.json"
				      : "it is not a regular file; copy its "
					"bytes to one and name that");
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
				 "a .raw file has no dtype and no shape: give "
				 "--dtype and --shape");
	*ret = (struct safetensors_entry){.type = *raw};
	tensor_type_contiguous(&ret->type);
	r = tensor_type_check(&ret->type, &size, err);
	if (r < 0)
		return r;
	if (size != input->size)
		return error_set(err, -EINVAL,
				 "--dtype and --shape need %" PRIu64
				 " bytes, but the file has %" PRIu64,
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
