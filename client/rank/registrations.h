/*
 * Registrations with NCCL (FSDP_MEMORY_REGISTERED): each chunk is registered
 * once, before the first collective that uses memory in it. Registered memory
 * must not be unmapped. So a registered chunk stays mapped until it is
 * deregistered here, even if the broker has retired it. The engine calls these
 * functions whenever it begins an operation.
 */
#pragma once
#include "client/tensor.h"
#include "cuda/nccl_comm.h"

struct error;
struct registration;

struct registrations {
	bool is_wanted;
	struct registration *list; /* owned */
	size_t n, capacity;
};

/* Register the tensor's chunk, if registration was requested and is not done
 * yet. A failure ends the communicator. */
int registrations_add(struct registrations *registrations,
		      struct nccl_comm *comm, const struct fsdp_tensor *tensor,
		      struct error *err);

/* Deregister the chunks that the broker has retired, which no work uses any
 * more (mapping.h). */
int registrations_trim(struct registrations *registrations,
		       struct nccl_comm *comm, struct fsdp_client *client,
		       struct error *err);

/* Forget all registrations, which NCCL has released. */
void registrations_end(struct registrations *registrations,
		       struct fsdp_client *client);
