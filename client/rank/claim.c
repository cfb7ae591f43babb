/*
 * A place without the reply that it came in: it has no name, and its chunk is
 * asked for again when it is mapped.
 */
#include "client/rank/claim.h"
#include "client/client.h"
#include "client/places.h"
#include "shm/refs.h"

void claim_take(struct claim *claim, const struct tensor_place *place,
		bool is_writable)
{
	*claim = (struct claim){
		.is_held = true,
		.is_writable = is_writable,
		.place = *place,
	};
	claim->place.name = "";
}

int claim_map(struct claim *claim, struct fsdp_client *client,
	      struct fsdp_tensor **ret, struct error *err)
{
	struct places_reply places = {.n_places = 1, .places = &claim->place};
	struct places_use use = {.n = 1, .is_writable = claim->is_writable};
	int r;

	if (!claim->is_held)
		return 0;
	r = places_adopt_batch(client, &places, &use, ret, err);
	/* On failure the grant went back. */
	claim->is_held = false;
	return r;
}

void claim_drop(struct claim *claim, struct fsdp_client *client)
{
	struct places_reply places = {.n_places = 1, .places = &claim->place};

	if (claim->is_held)
		places_give_back(client, &places);
	claim->is_held = false;
}
