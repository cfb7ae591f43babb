/*
 * Chunks that NCCL was told of (FSDP_MEMORY_REGISTERED): each once, before the
 * first collective that uses memory in it.
 *
 * NCCL must not be left with memory that is unmapped. So a chunk that is
 * registered stays mapped until it is deregistered here, also when the broker
 * has taken it back; the engine comes by whenever it begins something.
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

/* Register the tensor's chunk, if that is wanted and was not done. Whatever
 * this says is the communicator's end. */
int registrations_add(struct registrations *registrations,
		      struct nccl_comm *comm, const struct fsdp_tensor *tensor,
		      struct error *err);

/* Deregister what the broker has no more: nothing uses it then (mapping.h). */
int registrations_trim(struct registrations *registrations,
		       struct nccl_comm *comm, struct fsdp_client *client,
		       struct error *err);

/* NCCL has forgotten all of them. */
void registrations_end(struct registrations *registrations,
		       struct fsdp_client *client);
