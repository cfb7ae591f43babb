/*
 * Records digests of tensors that are being written.
 */
#include "client/client.h"
#include "client/tensor.h"
#include <errno.h>

static int record(struct fsdp_client *client,
		  struct fsdp_tensor *const *tensors, const uint64_t *digests,
		  uint32_t n, struct error *err)
{
	struct digest_item items[FSDP_MAX_BATCH];
	struct request request = {.kind = MESSAGE_DIGESTS,
				  .digests = {.n_items = n, .items = items}};

	for (uint32_t i = 0; i < n; i++)
		items[i] = (struct digest_item){
			.ref = {.slot = tensors[i]->slot,
				.generation = tensors[i]->generation},
			.digest = digests[i]};
	return client_command(client, &request, err);
}

int fsdp_set_digests(struct fsdp_tensor *const *tensors,
		     const uint64_t *digests, size_t n)
{
	struct error *err = error_of_thread();
	int r = 0;

	for (size_t i = 0; r == 0 && i < n; i++) {
		r = client_check_tensor(tensors[i], err);
		if (r == 0 && tensors[i]->client != tensors[0]->client)
			r = error_set(err, -EINVAL,
				      "tensors[%zu] is of another connection "
				      "than tensors[0]",
				      i);
	}
	for (size_t i = 0; r == 0 && i < n; i += FSDP_MAX_BATCH) {
		size_t left = n - i;

		r = record(tensors[0]->client, tensors + i, digests + i,
			   (uint32_t)(left < FSDP_MAX_BATCH ? left
							    : FSDP_MAX_BATCH),
			   err);
	}
	return r;
}
