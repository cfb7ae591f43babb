#include "handle.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct handle *handle_new(struct link *link, struct fsdp_tensor *tensor)
{
	struct handle *handle = malloc(sizeof(*handle));

	if (!handle) {
		fsdp_free(tensor);
		return NULL;
	}
	handle->tensor = tensor;
	handle->link = link_use(link);
	atomic_init(&handle->n_users, 1);
	return handle;
}

static void drop(struct handle *handle)
{
	/* Acquire and release: the last user sees the writes of all others. */
	if (atomic_fetch_sub_explicit(&handle->n_users, 1,
				      memory_order_acq_rel) > 1 ||
	    link_is_left_open())
		return;
	fsdp_free(handle->tensor);
	link_drop(handle->link);
	free(handle);
}

void handle_drop_holds(struct handle *handle, uint32_t n)
{
	/* Relaxed: if the other users end meanwhile, drop() drops all
	 * holds. */
	if (atomic_load_explicit(&handle->n_users, memory_order_relaxed) > 1 &&
	    !link_is_left_open())
		while (n-- > 0)
			(void)fsdp_release(handle->tensor);
	drop(handle);
}

int handle_export(struct handle *handle)
{
	int r = fsdp_hold(handle->tensor);

	if (r < 0)
		return r;
	/* Relaxed: the caller has a use of its own. */
	atomic_fetch_add_explicit(&handle->n_users, 1, memory_order_relaxed);
	return 0;
}

void handle_unexport(struct handle *handle)
{
	if (!link_is_left_open())
		(void)fsdp_release(handle->tensor);
	drop(handle);
}

bool handle_is_on_device(const struct fsdp_info *info)
{
	static const struct fsdp_device host;

	return memcmp(&info->device, &host, sizeof(host)) != 0;
}

uint64_t handle_n_bytes(const struct fsdp_info *info)
{
	uint64_t n = fsdp_dtype_size(info->dtype);

	for (uint32_t i = 0; i < info->n_dims; i++)
		n *= (uint64_t)info->shape[i];
	return n;
}

bool handle_is_contiguous(const struct fsdp_info *info)
{
	int64_t step = 1;

	for (uint32_t i = info->n_dims; i-- > 0; step *= info->shape[i])
		if (info->shape[i] != 1 && info->strides[i] != step)
			return false;
	return true;
}

int handle_view(struct handle *handle, bool on_device, struct view *ret)
{
	/* Consumers need an address even for a tensor without elements. */
	static uint8_t nothing[16];
	int r;

	ret->info = (struct fsdp_info){.struct_size = sizeof(ret->info)};
	r = fsdp_tensor_info(handle->tensor, &ret->info);
	if (r < 0)
		return r;
	if (!on_device && handle_is_on_device(&ret->info))
		return -EOPNOTSUPP;
	ret->data = fsdp_data_mut(handle->tensor);
	ret->is_writable = ret->data || ret->info.size == 0;
	if (!ret->data)
		ret->data = (void *)(uintptr_t)fsdp_data(handle->tensor);
	if (!ret->data)
		ret->data = nothing;
	return 0;
}
