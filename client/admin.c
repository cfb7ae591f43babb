/*
 * Requests of administrators.
 */
#include "client/client.h"
#include "client/device.h"

static int control(struct fsdp_client *client,
		   const struct control_request *control,
		   struct control_reply *ret)
{
	struct error *err = error_of_thread();
	struct request request = {.kind = MESSAGE_CONTROL, .control = *control};
	struct received received;
	int r = client_call(client, &request, &received, err);

	if (r < 0)
		return r;
	*ret = received.reply.control;
	received_deinit(&received);
	return 0;
}

/* Do an action without arguments, which frees memory. */
static int release(struct fsdp_client *client, enum control_action action,
		   uint64_t *ret_n, uint64_t *ret_bytes)
{
	struct control_reply reply;
	int r = control(client, &(struct control_request){.action = action},
			&reply);

	if (r < 0)
		return r;
	*ret_n = reply.n;
	*ret_bytes = reply.bytes;
	return 0;
}

int fsdp_collect(struct fsdp_client *client, uint64_t *ret_n,
		 uint64_t *ret_bytes)
{
	return release(client, CONTROL_COLLECT, ret_n, ret_bytes);
}

int fsdp_trim(struct fsdp_client *client, uint64_t *ret_n, uint64_t *ret_bytes)
{
	return release(client, CONTROL_TRIM, ret_n, ret_bytes);
}

int fsdp_evict(struct fsdp_client *client, const struct fsdp_device *device,
	       uint64_t size, uint64_t *ret_n, uint64_t *ret_bytes)
{
	static const struct fsdp_device host;
	struct control_request request = {
		.action = CONTROL_EVICT,
		.value = size,
		.device = device_uuid_of(device ? device : &host),
	};
	struct control_reply reply;
	uint64_t n = 0, bytes = 0;

	/* The broker evicts only as much at a time as takes a bounded time. */
	do {
		int r = control(client, &request, &reply);

		if (r < 0)
			return r;
		n += reply.n;
		bytes += reply.bytes;
		if (bytes < size)
			request.value = size - bytes;
	} while (reply.has_more && bytes < size);
	*ret_n = n;
	*ret_bytes = bytes;
	return 0;
}

int fsdp_drain(struct fsdp_client *client, int32_t timeout_ms)
{
	struct control_reply reply;

	return control(client,
		       &(struct control_request){.action = CONTROL_DRAIN,
						 .value = 1,
						 .timeout_ms = timeout_ms},
		       &reply);
}

int fsdp_undrain(struct fsdp_client *client)
{
	struct control_reply reply;

	return control(client,
		       &(struct control_request){.action = CONTROL_DRAIN},
		       &reply);
}

int fsdp_log_level(struct fsdp_client *client, enum fsdp_log_level level)
{
	struct control_reply reply;

	return control(client,
		       &(struct control_request){.action = CONTROL_LOG_LEVEL,
						 .value = level},
		       &reply);
}
