/*
 * A place remains valid after the reply that contained it is freed: it has no
 * name, and its chunk is requested again when the place is mapped.
 */
#include "client/rank/lazy_mapping.h"
#include "client/client.h"
#include "client/places.h"

void lazy_mapping_take(struct lazy_mapping *lazy_mapping,
		       const struct tensor_place *place, bool is_writable)
{
	*lazy_mapping = (struct lazy_mapping){
		.is_held = true,
		.is_writable = is_writable,
		.place = *place,
	};
	lazy_mapping->place.name = "";
}

int lazy_mapping_map(struct lazy_mapping *lazy_mapping,
		     struct fsdp_client *client, struct fsdp_tensor **ret,
		     struct error *err)
{
	struct places_reply places = {.n_places = 1,
				      .places = &lazy_mapping->place};
	struct places_use use = {.n = 1,
				 .is_writable = lazy_mapping->is_writable};
	int r;

	if (!lazy_mapping->is_held)
		return 0;
	r = places_adopt_batch(client, &places, &use, ret, err);
	/* On failure the grant was returned. */
	lazy_mapping->is_held = false;
	return r;
}

void lazy_mapping_drop(struct lazy_mapping *lazy_mapping,
		       struct fsdp_client *client)
{
	struct places_reply places = {.n_places = 1,
				      .places = &lazy_mapping->place};

	if (lazy_mapping->is_held)
		places_give_back(client, &places);
	lazy_mapping->is_held = false;
}
