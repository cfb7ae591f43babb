/*
 * Maps memory of committed bundles a second time, for a process that wants to
 * write to it: the kernel copies each page at the first write.
 *
 * This is only possible for a bundle's memory, which is sealed for ever. Other
 * memory may be reused, and pages that were not written would show the contents
 * of later tensors.
 */
#include "client/client.h"
#include "client/places.h"
#include "shm/memfd.h"
#include "shm/refs.h"
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>

/* Return the offset of the tensor in its first page, which is the same in every
 * mapping. */
static size_t lead_of(const void *data)
{
	return (uintptr_t)data & (refs_page_size() - 1);
}

static int refuse(const struct fsdp_tensor *tensor, const char *cause,
		  struct error *err)
{
	return error_set(err, -EOPNOTSUPP,
			 "cannot map %s privately: %s; copy it",
			 desc_name(tensor_desc(tensor)), cause);
}

static int check_sealed(const struct fsdp_tensor *tensor, int fd, uint64_t size,
			struct error *err)
{
	int r = memfd_check(fd, size, NULL, err);

	if (r < 0 || fcntl(fd, F_GET_SEALS) & F_SEAL_WRITE)
		return r;
	return refuse(tensor, "it is not in a committed bundle", err);
}

static int map(const struct fsdp_tensor *tensor, const struct range *range,
	       int fd, void **ret, struct error *err)
{
	const uint8_t *data = fsdp_data(tensor);
	size_t lead = lead_of(data);
	off_t at = (off_t)(data - range->address) - (off_t)lead;
	size_t size = desc_rest(tensor_desc(tensor))->size + lead;
	uint8_t *address;

	/* The seal prevents only shared mappings from being writable. */
	address = mmap(NULL, size, PROT_READ | PROT_WRITE,
		       MAP_PRIVATE | MAP_NORESERVE, fd, at);
	if (address == MAP_FAILED)
		return error_errno(err, -errno, "cannot map a private copy");
	*ret = address + lead;
	return 0;
}

static int ask_and_map(struct fsdp_tensor *tensor, const struct range *range,
		       void **ret, struct error *err)
{
	uint32_t chunk = range->chunk;
	struct received received;
	int r = places_ask_chunks(tensor->client, &chunk, 1, &received, err);

	if (r < 0)
		return r;
	if (received.n_fds)
		r = check_sealed(tensor, received.fds[0], range->size, err);
	else
		r = refuse(tensor, "its memory does not come from a file", err);
	if (r == 0)
		r = map(tensor, range, received.fds[0], ret, err);
	received_deinit(&received);
	return r;
}

int fsdp_private_map(struct fsdp_tensor *tensor, void **ret)
{
	struct error *err = error_of_thread();
	struct range range = {0};
	int r = client_check_held(tensor, err);

	if (r < 0)
		return r;
	if (tensor_desc(tensor)->is_on_device || !fsdp_data(tensor))
		return refuse(tensor, "it is not in host memory", err);
	r = mappings_find(&tensor->client->mappings,
			  desc_rest(tensor_desc(tensor))->chunk, false, &range,
			  err);
	if (r == MAPPING_MISSING)
		r = refuse(tensor, "it is not mapped", err);
	return r < 0 ? r : ask_and_map(tensor, &range, ret, err);
}

void fsdp_private_unmap(void *data, uint64_t size)
{
	size_t lead = lead_of(data);

	(void)munmap((uint8_t *)data - lead, size + lead);
}
