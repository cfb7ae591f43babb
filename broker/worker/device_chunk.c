#include "broker/worker/device_chunk.h"
#include "proto/error.h"
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct device_chunk {
	struct device_uuid device;
	uint64_t size;
	pthread_mutex_t lock; /* protects the next two */
	int fd;               /* owned; -1 once the memory is mapped */
	struct vmm_mapping mapping;
};

int device_chunk_new(const struct device_uuid *device, uint64_t size, int fd,
		     struct device_chunk **ret, struct error *err)
{
	struct device_chunk *chunk = calloc(1, sizeof(*chunk));

	if (!chunk)
		return error_nomem(err, "it");
	chunk->device = *device;
	chunk->size = size;
	chunk->mapping = VMM_MAPPING_NULL;
	chunk->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (chunk->fd < 0) {
		int r = -errno;

		free(chunk);
		return error_errno(err, r, "cannot keep its descriptor");
	}
	pthread_mutex_init(&chunk->lock, NULL);
	*ret = chunk;
	return 0;
}

void device_chunk_free(struct device_chunk *chunk)
{
	if (!chunk)
		return;
	if (chunk->fd >= 0)
		close(chunk->fd);
	vmm_unmap(&chunk->mapping);
	pthread_mutex_destroy(&chunk->lock);
	free(chunk);
}

bool device_chunk_is_on(const struct device_chunk *chunk,
			const struct device_uuid *device)
{
	return memcmp(&chunk->device, device, sizeof(*device)) == 0;
}

static int map(struct device_chunk *chunk, const struct device *device,
	       struct error *err)
{
	int r;

	if (chunk->mapping.address)
		return 0;
	r = vmm_map(device, chunk->fd, chunk->size, true, &chunk->mapping, err);
	if (r < 0)
		return r;
	close(chunk->fd);
	chunk->fd = -1;
	return 0;
}

int device_chunk_map(struct device_chunk *chunk, const struct device *device,
		     CUdeviceptr *ret, struct error *err)
{
	int r;

	pthread_mutex_lock(&chunk->lock);
	r = map(chunk, device, err);
	*ret = chunk->mapping.address;
	pthread_mutex_unlock(&chunk->lock);
	return r;
}
