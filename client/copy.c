/*
 * A thread that copies takes a copier of the device, or makes one, and returns
 * it afterwards. So a reader function that is called during a copy may copy,
 * too, with another copier.
 */
#include "client/copy.h"
#include "client/client.h"
#include "client/stream.h"
#include "cuda/staging.h"
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct copier {
	struct copier *next;
	const struct device *device;
	struct staging *staging;
};

void copiers_init(struct copiers *copiers)
{
	*copiers = (struct copiers){.idle = NULL};
	pthread_mutex_init(&copiers->lock, NULL);
}

void copiers_deinit(struct copiers *copiers, bool is_forked)
{
	while (copiers->idle) {
		struct copier *copier = copiers->idle;

		copiers->idle = copier->next;
		if (!is_forked)
			staging_free(copier->staging);
		free(copier);
	}
}

static struct copier *take_idle(struct copiers *copiers,
				const struct device *device)
{
	struct copier **link = &copiers->idle, *copier;

	pthread_mutex_lock(&copiers->lock);
	while (*link && (*link)->device != device)
		link = &(*link)->next;
	copier = *link;
	if (copier)
		*link = copier->next;
	pthread_mutex_unlock(&copiers->lock);
	return copier;
}

static int take(struct copiers *copiers, const struct device *device,
		struct copier **ret, struct error *err)
{
	struct copier *copier = take_idle(copiers, device);
	int r;

	if (!copier) {
		copier = calloc(1, sizeof(*copier));
		if (!copier)
			return error_nomem(err, "a copy");
		copier->device = device;
		r = staging_new(device, 0, &copier->staging, err);
		if (r < 0) {
			free(copier);
			return r;
		}
	}
	*ret = copier;
	return 0;
}

/* Wait until all copies are done, also if `r` says that something failed, and
 * return the copier. */
static int give_back(struct copiers *copiers, struct copier *copier, int r,
		     struct error *err)
{
	int r_finish = staging_finish(copier->staging, r < 0 ? NULL : err);

	pthread_mutex_lock(&copiers->lock);
	copier->next = copiers->idle;
	copiers->idle = copier;
	pthread_mutex_unlock(&copiers->lock);
	return r < 0 ? r : r_finish;
}

static const struct device *device_of(const struct fsdp_tensor *tensor)
{
	const struct desc_device *it = desc_device(tensor_desc(tensor));

	return it ? it->device : NULL;
}

static uint64_t size_of(const struct fsdp_tensor *tensor)
{
	return tensor->data ? desc_rest(tensor_desc(tensor))->size : 0;
}

static int check_writable(struct fsdp_tensor *tensor, struct error *err)
{
	int r = client_check_held(tensor, err);

	if (r == 0 && tensor->data && !fsdp_data_mut(tensor))
		r = error_set(
			err, -EACCES,
			"this process cannot write the tensor: only the "
			"process that allocated it may, until it is published");
	return r;
}

static int check_range(const struct fsdp_tensor *tensor, uint64_t offset,
		       uint64_t size, struct error *err)
{
	uint64_t n = size_of(tensor);

	if (offset <= n && size <= n - offset)
		return 0;
	return error_set(err, -ERANGE,
			 "%" PRIu64 " bytes at offset %" PRIu64
			 " extend beyond the tensor, which has %" PRIu64
			 " bytes",
			 size, offset, n);
}

/* --- copies -------------------------------------------------------------- */

static CUdeviceptr address_of(const struct fsdp_tensor *tensor, uint64_t offset)
{
	return (CUdeviceptr)(uintptr_t)tensor->data + offset;
}

int copiers_put(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err)
{
	struct copier *copier;
	int r = take(copiers, device, &copier, err);

	if (r < 0)
		return r;
	r = staging_put_bytes(copier->staging, (CUdeviceptr)(uintptr_t)to, from,
			      size, err);
	return give_back(copiers, copier, r, err);
}

int copiers_get(struct copiers *copiers, const struct device *device, void *to,
		const void *from, uint64_t size, struct error *err)
{
	struct copier *copier;
	int r = take(copiers, device, &copier, err);

	if (r < 0)
		return r;
	r = staging_get(copier->staging, to, (CUdeviceptr)(uintptr_t)from, size,
			err);
	return give_back(copiers, copier, r, err);
}

int fsdp_copy_in(struct fsdp_tensor *tensor, uint64_t offset, const void *from,
		 uint64_t size)
{
	struct error *err = error_of_thread();
	const struct device *device;
	int r;

	r = check_writable(tensor, err);
	if (r == 0)
		r = check_range(tensor, offset, size, err);
	if (r < 0 || size == 0)
		return r;
	device = device_of(tensor);
	if (!device) {
		memcpy(tensor->data + offset, from, size);
		return 0;
	}
	return copiers_put(&tensor->client->copiers, device,
			   tensor->data + offset, from, size, err);
}

int fsdp_copy_out(void *to, struct fsdp_tensor *tensor, uint64_t offset,
		  uint64_t size)
{
	static const struct fsdp_get_options for_ever = {.timeout_ms = -1};
	struct error *err = error_of_thread();
	const struct device *device;
	int r;

	r = client_check_held(tensor, err);
	if (r == 0)
		r = check_range(tensor, offset, size, err);
	if (r == 0)
		r = stream_await(&tensor, 1, &for_ever, 0, err);
	if (r < 0 || size == 0)
		return r;
	device = device_of(tensor);
	if (!device) {
		memcpy(to, tensor->data + offset, size);
		return 0;
	}
	return copiers_get(&tensor->client->copiers, device, to,
			   tensor->data + offset, size, err);
}

/* --- filling ------------------------------------------------------------- */

/* The state of fsdp_fill(). */
struct filling {
	fsdp_read_fn *read;
	void *data;
	size_t i;
	/* for the device of the last tensor on a device; NULL: none yet */
	struct copier *copier;
};

static int read_piece(void *data, void *into, size_t size, struct error *err)
{
	struct filling *filling = data;
	int r = filling->read(filling->i, into, size, filling->data);

	if (r == 0)
		return 0;
	return error_errno(err, r < 0 ? r : -EINVAL,
			   "cannot fill tensors[%zu]: its bytes were not read",
			   filling->i);
}

/* Take a copier of this device if `filling` has none, and return one of another
 * device. */
static int choose_copier(struct copiers *copiers, struct filling *filling,
			 const struct device *device, struct error *err)
{
	struct copier *old = filling->copier;
	int r = 0;

	if (old && old->device == device)
		return 0;
	filling->copier = NULL;
	if (old)
		r = give_back(copiers, old, 0, err);
	return r < 0 ? r : take(copiers, device, &filling->copier, err);
}

static int fill_one(struct fsdp_tensor *tensor, struct filling *filling,
		    struct error *err)
{
	const struct device *device = device_of(tensor);
	uint64_t size = size_of(tensor);
	int r;

	if (size == 0)
		return 0;
	if (!device)
		return read_piece(filling, tensor->data, size, err);
	r = choose_copier(&tensor->client->copiers, filling, device, err);
	if (r < 0)
		return r;
	return staging_put(filling->copier->staging, address_of(tensor, 0),
			   size, read_piece, filling, err);
}

int fsdp_fill(struct fsdp_tensor *const *tensors, size_t n, fsdp_read_fn *read,
	      void *data)
{
	struct filling filling = {.read = read, .data = data};
	struct error *err = error_of_thread();
	int r = 0;

	for (size_t i = 0; i < n && r == 0; i++)
		r = check_writable(tensors[i], err);
	for (; filling.i < n && r == 0; filling.i++)
		r = fill_one(tensors[filling.i], &filling, err);
	if (filling.copier)
		r = give_back(&tensors[0]->client->copiers, filling.copier, r,
			      err);
	return r;
}
