/*
 * Registrations are in a list that is searched from its start, since there are
 * few chunks.
 */
#include "client/rank/registrations.h"
#include "client/client.h"
#include <stdlib.h>

struct registration {
	uint32_t chunk;
	CUdeviceptr address;
};

static bool has(const struct registrations *registrations, uint32_t chunk)
{
	for (size_t i = 0; i < registrations->n; i++) {
		if (registrations->list[i].chunk == chunk)
			return true;
	}
	return false;
}

static int reserve(struct registrations *registrations, struct error *err)
{
	size_t capacity =
		registrations->capacity ? 2 * registrations->capacity : 8;
	struct registration *list;

	if (registrations->n < registrations->capacity)
		return 0;
	list = reallocarray(registrations->list, capacity, sizeof(*list));
	if (!list)
		return error_nomem(err, "a registration");
	registrations->list = list;
	registrations->capacity = capacity;
	return 0;
}

static int add(struct registrations *registrations, struct nccl_comm *comm,
	       struct fsdp_client *client, uint32_t chunk, struct error *err)
{
	struct range range;
	CUdeviceptr address;
	int r = reserve(registrations, err);

	if (r == 0)
		r = mappings_keep(&client->mappings, chunk, &range, err);
	if (r < 0)
		return r;
	address = (CUdeviceptr)(uintptr_t)range.address;
	r = nccl_comm_register(comm, address, range.size, err);
	if (r < 0) {
		mappings_end_keep(&client->mappings, chunk);
		return error_wrap(
			err, r,
			"FSDP_MEMORY_REGISTERED: cannot register chunk %u with "
			"NCCL (FSDP_MEMORY_DEFAULT needs no registration)",
			chunk);
	}
	registrations->list[registrations->n++] =
		(struct registration){chunk, address};
	return 0;
}

int registrations_add(struct registrations *registrations,
		      struct nccl_comm *comm, const struct fsdp_tensor *tensor,
		      struct error *err)
{
	uint32_t chunk = desc_rest(tensor_desc(tensor))->chunk;

	/* A tensor without elements has no memory. */
	if (!registrations->is_wanted || !chunk || has(registrations, chunk))
		return 0;
	return add(registrations, comm, tensor->client, chunk, err);
}

int registrations_trim(struct registrations *registrations,
		       struct nccl_comm *comm, struct fsdp_client *client,
		       struct error *err)
{
	int r = 0;

	for (size_t i = 0; i < registrations->n && r == 0;) {
		struct registration *it = &registrations->list[i];

		if (!mappings_is_gone(&client->mappings, it->chunk,
				      &client->table)) {
			i++;
			continue;
		}
		r = nccl_comm_deregister(comm, it->address, err);
		mappings_end_keep(&client->mappings, it->chunk);
		*it = registrations->list[--registrations->n];
	}
	return r;
}

void registrations_end(struct registrations *registrations,
		       struct fsdp_client *client)
{
	for (size_t i = 0; i < registrations->n; i++)
		mappings_end_keep(&client->mappings,
				  registrations->list[i].chunk);
	free(registrations->list);
	registrations->list = NULL;
	registrations->n = registrations->capacity = 0;
}
