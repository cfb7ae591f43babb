/* Reads the contents of a tensor. */
#include "client/ctl/contents.h"

#include "client/ctl/broker.h"
#include "client/ctl/interrupt.h"
#include "proto/error.h"
#include "proto/name.h"

#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

/* The bytes that are copied from a device at a time. It is a multiple of the
 * size of any element. */
#define PIECE ((uint64_t)16 << 20)

int contents_hold(struct fsdp_client *client, const char *name,
		  const struct fsdp_get_options *options,
		  struct fsdp_tensor ***ret, size_t *ret_n, struct error *err)
{
	struct fsdp_tensor **tensors;
	int r;

	if (name_is_bundle(name)) {
		r = fsdp_bundle_get(client, name, options, ret, ret_n);
		return r < 0 ? broker_failed(err, r) : 0;
	}
	tensors = calloc(1, sizeof(struct fsdp_tensor *));
	if (!tensors)
		return error_nomem(err, "a handle");
	r = fsdp_get(client, &name, 1, options, tensors);
	if (r < 0) {
		free(tensors);
		return broker_failed(err, r);
	}
	*ret = tensors;
	*ret_n = 1;
	return 0;
}

void contents_type(const struct fsdp_tensor *tensor, struct tensor_type *ret)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	fsdp_tensor_info(tensor, &info);
	ret->dtype = info.dtype;
	ret->n_dims = info.n_dims;
	memcpy(ret->shape, info.shape, sizeof(ret->shape));
	memcpy(ret->strides, info.strides, sizeof(ret->strides));
}

bool contents_is_on_host(const struct fsdp_tensor *tensor)
{
	static const struct fsdp_device host;
	struct fsdp_info info = {.struct_size = sizeof(info)};

	fsdp_tensor_info(tensor, &info);
	return memcmp(&info.device, &host, sizeof(host)) == 0;
}

const void *contents_address(const struct fsdp_tensor *tensor)
{
	struct tensor_type type;

	contents_type(tensor, &type);
	if (!contents_is_on_host(tensor) || !tensor_type_is_contiguous(&type))
		return NULL;
	return fsdp_data(tensor);
}

/* Copies piece after piece to `buffer` and passes each to `write`, as a tensor
 * of one dimension. */
static int write_pieces(struct fsdp_tensor *tensor,
			const struct tensor_type *type, uint32_t cast,
			void *buffer, pack_fn *write, void *data,
			struct error *err)
{
	const uint64_t size = dtype_size(type->dtype), n = PIECE / size;
	uint64_t left = tensor_type_numel(type), at = 0;
	int r = 0;

	while (left && r == 0) {
		struct tensor_type piece = {
			.dtype = type->dtype,
			.n_dims = 1,
			.shape = {(int64_t)(left < n ? left : n)},
			.strides = {1}};
		uint64_t bytes = (uint64_t)piece.shape[0] * size;

		r = fsdp_copy_out(buffer, tensor, at, bytes);
		if (r < 0)
			return broker_failed(err, r);
		r = pack_write(buffer, &piece, cast, write, data, err);
		left -= (uint64_t)piece.shape[0];
		at += bytes;
	}
	return r;
}

static int write_copy(struct fsdp_tensor *tensor,
		      const struct tensor_type *type, uint32_t cast,
		      void *buffer, pack_fn *write, void *data,
		      struct error *err)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	int r;

	fsdp_tensor_info(tensor, &info);
	r = fsdp_copy_out(buffer, tensor, 0, info.size);
	if (r < 0)
		return broker_failed(err, r);
	return pack_write(buffer, type, cast, write, data, err);
}

static int write_from_device(struct fsdp_tensor *tensor,
			     const struct tensor_type *type, uint32_t cast,
			     pack_fn *write, void *data, struct error *err)
{
	bool is_contiguous = tensor_type_is_contiguous(type);
	struct fsdp_info info = {.struct_size = sizeof(info)};
	void *buffer;
	int r;

	fsdp_tensor_info(tensor, &info);
	buffer = malloc(is_contiguous ? PIECE : info.size);
	if (!buffer)
		return error_nomem(err, "a copy");
	r = is_contiguous
		    ? write_pieces(tensor, type, cast, buffer, write, data, err)
		    : write_copy(tensor, type, cast, buffer, write, data, err);
	free(buffer);
	return r;
}

int contents_write(struct fsdp_tensor *tensor, uint32_t cast, pack_fn *write,
		   void *data, struct error *err)
{
	struct tensor_type type;

	contents_type(tensor, &type);
	if (!contents_is_on_host(tensor))
		return write_from_device(tensor, &type, cast, write, data, err);
	return pack_write(fsdp_data(tensor), &type, cast, write, data, err);
}

static int update(void *state, const void *bytes, size_t size,
		  struct error *err)
{
	int r = interrupt_check(err);

	if (r == 0)
		XXH3_64bits_update(state, bytes, size);
	return r;
}

int contents_digest(struct fsdp_tensor *tensor, uint64_t *ret,
		    struct error *err)
{
	XXH3_state_t *state = XXH3_createState();
	int r;

	if (!state)
		return error_nomem(err, "a digest");
	XXH3_64bits_reset(state);
	r = contents_write(tensor, 0, update, state, err);
	if (r == 0)
		*ret = XXH3_64bits_digest(state);
	XXH3_freeState(state);
	return r;
}
