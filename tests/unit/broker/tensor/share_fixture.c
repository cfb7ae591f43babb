#include "tests/unit/broker/tensor/share_fixture.h"

struct sharing sharing_of(const struct device_uuid *device, uint64_t n,
			  uint64_t size)
{
	struct sharing sharing = {
		.device = *device,
		.gid = GID_DEFAULT,
		.mode = 0644,
		.has_handle = true,
		.handle = {.version = HANDLE_VERSION,
			   .kind = HANDLE_MEMORY,
			   .origin = 4711,
			   .generation = n,
			   .size = size},
		.fd = -1,
		.size = size,
		.item.type = item_of(100).type,
	};

	return sharing;
}

struct sharing donation_of(const struct device_uuid *device, uint64_t size)
{
	struct sharing sharing = sharing_of(device, 0, size);
	const struct device *found;
	struct error err = ERROR_NULL;

	must(device_find(device, &found, &err), &err);
	must(vmm_create(found, size, &sharing.fd, &err), &err);
	sharing.has_handle = false;
	return sharing;
}

void client_send_share(struct client *client, const struct sharing *sharing)
{
	struct share_item item = sharing->item;
	struct request request = {
		.kind = MESSAGE_SHARE,
		.share = {.device = sharing->device,
			  .access = {.gid = sharing->gid,
				     .mode = sharing->mode},
			  .has_handle = sharing->has_handle,
			  .size = sharing->size,
			  .n_items = 1,
			  .items = &item},
	};

	memcpy(request.share.handle, &sharing->handle, MESSAGE_HANDLE_SIZE);
	client_send_fd(client, &request, ++client->number,
		       sharing->fd < 0 ? -1 : dup(sharing->fd));
}

int client_share_reply(struct client *client, const struct sharing *sharing,
		       struct reply *ret)
{
	int code;

	client_send_share(client, sharing);
	while (!client_recv(client, ret, &code))
		loop_step(&client->broker->base.loop.uv);
	return code;
}

int client_share(struct client *client, const struct sharing *sharing,
		 struct slot_ref *ret)
{
	struct reply reply;
	int r = client_share_reply(client, sharing, &reply);

	if (r == 0)
		*ret = reply.places.places[0].ref;
	reply_deinit(&reply);
	return r;
}

int client_get_trusted(struct client *client, const char *name, uint32_t uid,
		       struct slot_ref *ret)
{
	struct request request = {
		.kind = MESSAGE_GET,
		.get = {.is_trust_set = true,
			.trusted_uid = uid,
			.n_names = 1,
			.names = &name},
	};
	struct reply reply;
	int r = client_call(client, &request, &reply);

	if (r == 0)
		*ret = reply.places.places[0].ref;
	reply_deinit(&reply);
	return r;
}

int client_view(struct client *client, const struct slot_ref *base,
		struct slot_ref *ret)
{
	struct alloc_item item = item_of(10);

	item.is_view = true;
	item.base = *base;
	return client_alloc_item(client, &item, 0, 0, 0, ret);
}

bool has_kcmp(void)
{
	pid_t pid = getpid();

	return syscall(SYS_kcmp, pid, pid, KCMP_FILE, 0UL, 0UL) == 0;
}
