/*
 * Chunks are registered with NCCL (FSDP_MEMORY_REGISTERED) once each, before
 * the first collective that uses memory in it. NCCL must not have unmapped
 * memory registered. So a registered chunk stays mapped until it is
 * deregistered here, even if the broker has retired it; the engine calls this
 * whenever it begins an operation.
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

/* Register the tensor's chunk, if that was requested and is not done yet. A
 * failure ends the communicator. */
int registrations_add(struct registrations *registrations,
		      struct nccl_comm *comm, const struct fsdp_tensor *tensor,
		      struct error *err);

/* Deregister the chunks that the broker has retired: no work uses them any more
 * (mapping.h). */
int registrations_trim(struct registrations *registrations,
		       struct nccl_comm *comm, struct fsdp_client *client,
		       struct error *err);

/* NCCL has released all of them. */
void registrations_end(struct registrations *registrations,
		       struct fsdp_client *client);
