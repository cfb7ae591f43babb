#include "client/event.h"
#include "client/client.h"
#include "client/event_book.h"
#include "cuda/event_ipc.h"
#include <errno.h>

_Static_assert(sizeof(struct handle) == MESSAGE_HANDLE_SIZE, "it travels");

/* --- producer ------------------------------------------------------------ */

/* Record an event. If the limit is reached, send a request, which reports and
 * drops complete events, and try again. */
static int record(struct fsdp_client *client, const struct device *device,
		  CUstream stream, struct event_ipc **ret, struct error *err)
{
	struct request ping = {.kind = MESSAGE_PING};
	int r = event_ipc_record(device, stream, ret, err);

	if (r != -EAGAIN)
		return r;
	r = client_command(client, &ping, err);
	return r < 0 ? r : event_ipc_record(device, stream, ret, err);
}

int event_record(struct fsdp_client *client, const struct device *device,
		 void *stream, struct fsdp_tensor *const *tensors, size_t n,
		 struct fence *ret, const uint8_t **ret_handle,
		 struct error *err)
{
	struct event_ipc *event;
	int r = record(client, device, stream, &event, err);

	if (r < 0)
		return r;
	r = event_book_add(&client->events, event, tensors, n, err);
	if (r < 0)
		return r;
	*ret = (struct fence){.session = client->connection.self.session,
			      .value = event->handle.generation};
	*ret_handle = (const uint8_t *)&event->handle;
	return 0;
}

static bool is_own(const struct fsdp_client *client, const struct fence *fence)
{
	return fence->session == client->connection.self.session;
}

void event_sent(struct fsdp_client *client, const struct fence *fence)
{
	if (fence_is_event(fence) && is_own(client, fence))
		event_book_end(&client->events, fence->value);
}

/* --- consumer ------------------------------------------------------------ */

/* The tensor has no fence any more: it is written, or tainted. */
#define EVENT_OVER 1

static int ask(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct fence *fence, struct handle *ret, struct error *err)
{
	const struct request request = {
		.kind = MESSAGE_TIMELINES,
		.timelines = {.session = fence->session, .ref = *ref},
	};
	struct received received;
	int r;

	if (is_own(client, fence))
		return event_book_find(&client->events, fence->value, ret)
			       ? 0
			       : EVENT_OVER;
	r = client_call(client, &request, &received, err);
	if (r < 0)
		return r == -ESRCH ? EVENT_OVER : r;
	if (received.reply.timelines.has_event)
		r = handle_decode(received.reply.timelines.event, HANDLE_SIZE,
				  HANDLE_EVENT, ret, err);
	else
		r = error_set(err, -EPROTO, "fsdpd sent no event");
	received_deinit(&received);
	return r;
}

/* Open the event. If its handle is invalid, the producer dropped the event
 * after the broker's reply; by now the broker knows this, so ask again. */
static int open_event(struct fsdp_client *client, const struct slot_ref *ref,
		      const struct fence *fence, const struct device *device,
		      struct event_ipc_import **ret, struct error *err)
{
	struct handle handle;
	int r;

	for (int i = 0; i < 2; i++) {
		r = ask(client, ref, fence, &handle, err);
		if (r == 0)
			r = event_ipc_open(device, &handle, ret, err);
		if (r != -EINVAL)
			break;
	}
	/* The event was our own, and was dropped. */
	return r == -ESTALE ? EVENT_OVER : r;
}

bool event_peek(struct fsdp_client *client, const struct fence *fence)
{
	return is_own(client, fence) &&
	       event_book_is_over(&client->events, fence->value);
}

int event_look(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct fence *fence, const struct device *device,
	       bool *ret, struct error *err)
{
	struct event_ipc_import *import;
	int r = open_event(client, ref, fence, device, &import, err);

	*ret = r == EVENT_OVER;
	if (r == 0) {
		r = event_ipc_import_query(import, ret, err);
		event_ipc_close(import);
	}
	return r < 0 && r != -EINVAL ? r : 0;
}

int event_wait(struct fsdp_client *client, const struct slot_ref *ref,
	       const struct fence *fence, const struct device *device,
	       void *stream, struct error *err)
{
	struct event_ipc_import *import;
	struct handle handle;
	int r = open_event(client, ref, fence, device, &import, err);

	if (r != 0)
		return r == EVENT_OVER ? 0 : r;
	r = event_ipc_wait(import, device, stream, err);
	event_ipc_close(import);
	/* Here, too, the producer may have dropped the event, after it was
	 * opened. */
	if (r == -EINVAL &&
	    ask(client, ref, fence, &handle, NULL) == EVENT_OVER)
		r = 0;
	return r;
}
