/*
 * Specs are converted to checked types before anything is sent, so that the
 * caller learns which item is invalid.
 */
#include "client/spec.h"
#include "client/client.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

static int check_fields(const struct fsdp_spec *spec, const int64_t *strides,
			struct error *err)
{
	if (!dtype_size((uint32_t)spec->dtype))
		return error_set(err, -EINVAL,
				 "dtype is %d, which is not in enum fsdp_dtype",
				 (int)spec->dtype);
	if (spec->n_dims > TENSOR_MAX_DIMS)
		return error_set(err, -EINVAL,
				 "n_dims is %u; a tensor has at most %d",
				 spec->n_dims, TENSOR_MAX_DIMS);
	for (uint32_t i = 0; i < spec->n_dims; i++) {
		if (spec->shape[i] < 0)
			return error_set(err, -EINVAL,
					 "shape[%u] is %" PRId64
					 "; sizes are 0 or more",
					 i, spec->shape[i]);
		if (strides && strides[i] < 0)
			return error_set(err, -EINVAL,
					 "strides[%u] is %" PRId64
					 "; strides are 0 or more",
					 i, strides[i]);
	}
	return 0;
}

struct access_class spec_access(const struct fsdp_access *access)
{
	bool is_set = access && access->mode;

	return (struct access_class){
		.gid = is_set ? access->gid : GID_DEFAULT,
		.mode = is_set ? access->mode : 0,
	};
}

int spec_to_type(const struct fsdp_spec *spec, const int64_t *strides,
		 struct tensor_type *ret, struct error *err)
{
	struct tensor_type type = {.dtype = (uint32_t)spec->dtype,
				   .n_dims = spec->n_dims};
	uint64_t span;
	int r = check_fields(spec, strides, err);

	if (r < 0)
		return r;
	for (uint32_t i = 0; i < spec->n_dims; i++) {
		type.shape[i] = spec->shape[i];
		if (strides)
			type.strides[i] = strides[i];
	}
	if (!strides)
		tensor_type_contiguous(&type);
	r = tensor_type_check(&type, &span, NULL);
	if (r < 0)
		return error_set(
			err, r, "shape makes a tensor of more than 2^62 bytes");
	*ret = type;
	return 0;
}

int spec_wrap(struct error *err, int r, const char *array, size_t i)
{
	struct error cause = *err;

	return error_set(err, r, "%s[%zu].%.400s", array, i, cause.msg);
}

int spec_alloc(struct fsdp_client *client, struct alloc_request *alloc,
	       const struct fsdp_spec *specs, const char *const *names,
	       struct received *ret, struct error *err)
{
	struct request request = {.kind = MESSAGE_ALLOC};
	struct alloc_item *items = calloc(alloc->n_items, sizeof(*items));
	int r = 0;

	if (!items)
		return error_nomem(err, "a request");
	for (uint32_t i = 0; i < alloc->n_items && r == 0; i++) {
		items[i].name = names ? names[i] : "";
		r = spec_to_type(&specs[i], NULL, &items[i].type, err);
		if (r < 0)
			spec_wrap(err, r, "specs", i);
	}
	if (r == 0) {
		alloc->items = items;
		request.alloc = *alloc;
		r = client_call(client, &request, ret, err);
	}
	free(items);
	return r;
}
