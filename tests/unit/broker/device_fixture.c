#include "tests/unit/broker/device_fixture.h"

void broker_await_driver(struct broker *self)
{
	while (self->store.devices.state == DEVICES_LOADING)
		loop_step(&self->base.loop.uv);
}

void broker_load_driver(struct broker *self)
{
	devices_load(&self->store.devices);
	broker_await_driver(self);
}

struct device_uuid broker_gpu(struct broker *self, uint32_t i)
{
	if (self->store.devices.state == DEVICES_LOADING)
		broker_load_driver(self);
	cr_assert(eq(int, self->store.devices.state, DEVICES_READY), "%s",
		  self->store.devices.why.msg);
	cr_assert(gt(u32, self->store.devices.n, i));
	return self->store.devices.list[i].uuid;
}

int client_alloc_on(struct client *client, const struct device_uuid *device,
		    uint64_t n, int32_t timeout_ms, struct slot_ref *ret)
{
	struct alloc_item item = item_of(n);
	struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT, .mode = 0644},
			  .timeout_ms = timeout_ms,
			  .n_items = 1,
			  .items = &item,
			  .device = *device},
	};
	struct reply reply;
	int r = client_call(client, &request, &reply);

	if (r == 0 && ret)
		*ret = reply.places.places[0].ref;
	reply_deinit(&reply);
	return r;
}

int client_timelines(struct client *client, uint64_t session,
		     const struct slot_ref *ref, bool is_writable)
{
	struct request request = {
		.kind = MESSAGE_TIMELINES,
		.timelines = {.session = session,
			      .wants_writable = is_writable},
	};

	if (ref)
		request.timelines.ref = *ref;
	return client_ask(client, &request);
}

void client_reach(struct client *client, uint32_t timeline, uint64_t value)
{
	uint8_t *pages = client->session->holdings.timelines.pages;

	cr_assert(ne(ptr, pages, NULL));
	atomic_store_explicit(
		(_Atomic uint64_t *)(void *)(pages +
					     timeline * TIMELINE_STRIDE),
		value, memory_order_release);
}

int client_publish_at(struct client *client, const struct slot_ref *ref,
		      const char *name, uint32_t timeline, uint64_t value)
{
	struct publish_item item = {.ref = *ref,
				    .name = name,
				    .flags = PUBLISH_REPLACE,
				    .timeline = timeline,
				    .value = value};

	return client_ask(client, &(struct request){.kind = MESSAGE_PUBLISH,
						    .publish = {1, &item}});
}

void client_release_at(struct client *client, const struct slot_ref *ref,
		       uint32_t timeline, uint64_t value)
{
	struct refs_entry *entry = &client->refs.entries[ref->slot];

	atomic_store_explicit(&entry->timeline, (uint16_t)timeline,
			      memory_order_relaxed);
	atomic_store_explicit(&entry->fence, value, memory_order_relaxed);
	if (client_release(client, ref))
		(void)collect_pending(&client->broker->store,
				      &client->session->holdings);
}

uint64_t client_session_id(const struct client *client)
{
	return session_record(client->session)->id;
}

struct tensor_place client_get_place(struct client *client, const char *name)
{
	struct request request = {
		.kind = MESSAGE_GET,
		.get = {.n_names = 1,
			.names = &name,
			.is_trust_set = true,
			.trusted_uid = 1000},
	};
	struct tensor_place place;
	struct reply reply;

	cr_assert(zero(int, client_call(client, &request, &reply)), "%s",
		  client->sentence);
	place = reply.places.places[0];
	reply_deinit(&reply);
	return place;
}
