#include "client/call.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void received_deinit(struct received *received)
{
	for (uint16_t i = 0; i < received->n_fds; i++)
		if (received->fds[i] >= 0)
			(void)close(received->fds[i]);
	received->n_fds = 0;
	reply_deinit(&received->reply);
}

bool call_may_change_holds(const struct call *call)
{
	return call->was_sent &&
	       (message_grants(call->kind) || call->kind == MESSAGE_RELEASE);
}

bool call_may_be_cut(const struct call *call)
{
	switch (call->kind) {
	case MESSAGE_RELEASE:
	case MESSAGE_UNSHARE:
	case MESSAGE_UNSHARD:
	case MESSAGE_RESHARD:
	case MESSAGE_REDUCE:
	case MESSAGE_COMMIT:
	case MESSAGE_INPUT_END:
	case MESSAGE_CHANNEL_KEEP:
		return false;
	default:
		return true;
	}
}

bool call_is_farewell(const struct call *call)
{
	switch (call->kind) {
	case MESSAGE_RELEASE:
	case MESSAGE_BUNDLE_ABORT:
	case MESSAGE_COMM_LEAVE:
	case MESSAGE_CHANNEL_CLOSE:
		return true;
	default:
		return false;
	}
}

bool call_must_be_read(const struct call *call)
{
	switch (call->kind) {
	case MESSAGE_BUNDLE_BEGIN:
	case MESSAGE_CHANNEL_OPEN:
		return call->was_sent;
	case MESSAGE_COMM_JOIN:
		/* After an outage the next broker does not know this rank,
		 * which would only join again. */
		return call->was_sent && call->error.code == -EINTR;
	default:
		return call_is_farewell(call);
	}
}

struct interrupt call_interrupt(const struct call *call,
				const struct interrupt *interrupt)
{
	return call_may_be_cut(call) ? *interrupt : (struct interrupt){0};
}

/* Free the body and the descriptor of the request. */
static void call_clear(struct call *call)
{
	if (call->fd >= 0)
		(void)close(call->fd);
	call->fd = -1;
	free(call->body);
	call->body = NULL;
}

static void call_free(struct call *call)
{
	/* `changed` is not destroyed: glibc would wait for threads that wait on
	 * it, and in a forked child these do not exist. It owns no resource. */
	call_clear(call);
	free(call->buffer);
	free(call);
}

static struct call *call_new(void)
{
	struct call *call = calloc(1, sizeof(*call));

	if (!call)
		return NULL;
	pthread_cond_init(&call->changed, NULL);
	call->fd = -1;
	call->buffer = malloc(FRAME_MAX_SIZE);
	if (call->buffer)
		return call;
	call_free(call);
	return NULL;
}

void call_hurry(struct call *call)
{
	struct request request;
	int32_t *timeout_ms;
	uint8_t *body;
	size_t size;

	if (request_decode(call->kind, call->body, call->body_size, &request,
			   NULL) < 0)
		return;
	timeout_ms = request_timeout(&request);
	if (timeout_ms)
		*timeout_ms = 0;
	if (timeout_ms && request_encode(&request, &body, &size, NULL) == 0) {
		free(call->body);
		call->body = body;
		call->body_size = (uint32_t)size;
	}
	request_deinit(&request);
}

int call_become(struct call *call, const struct request *request)
{
	uint8_t *body;
	size_t size;
	int r = request_encode(request, &body, &size, NULL);

	if (r < 0)
		return r;
	call_clear(call);
	call->kind = request->kind;
	call->body = body;
	call->body_size = (uint32_t)size;
	call->was_sent = call->is_done = false;
	return 0;
}

struct call *call_take(struct calls *calls)
{
	struct call *call = calls->idle;

	if (!call)
		return call_new();
	calls->idle = call->next;
	call->next = NULL;
	return call;
}

void call_give(struct calls *calls, struct call *call)
{
	call_clear(call);
	call->was_sent = call->is_done = false;
	calls->n_one_way -= call->is_one_way;
	call->is_orphan = call->is_one_way = false;
	call->is_begun = call->is_interrupted = false;
	call->one_way = (struct one_way){0};
	call->error.code = 0;
	call->prev = NULL;
	call->next = calls->idle;
	calls->idle = call;
}

void call_append(struct calls *calls, struct call *call)
{
	call->number = calls->next_number++;
	call->prev = calls->last;
	call->next = NULL;
	if (calls->last)
		calls->last->next = call;
	else
		calls->first = call;
	calls->last = call;
	if (!calls->first_unsent)
		calls->first_unsent = call;
}

void call_detach(struct calls *calls, struct call *call)
{
	if (calls->first_unsent == call)
		calls->first_unsent = call->next;
	if (call->prev)
		call->prev->next = call->next;
	else
		calls->first = call->next;
	if (call->next)
		call->next->prev = call->prev;
	else
		calls->last = call->prev;
	call->next = call->prev = NULL;
}

void call_take_fds(const struct call *call, struct received *ret)
{
	ret->n_fds = call->frame.n_fds;
	memcpy(ret->fds, call->frame.fds, sizeof(ret->fds));
}

int call_decode(const struct call *call, struct received *ret,
		struct error *err)
{
	struct received received;
	int r;

	call_take_fds(call, &received);
	if (call->frame.kind != call->kind)
		r = error_set(err, -EPROTO, "fsdpd replied to a %s with a %s",
			      message_kind_name(call->kind),
			      message_kind_name(call->frame.kind));
	else
		r = reply_decode(call->kind, call->frame.code, call->frame.body,
				 call->frame.body_size, &received.reply, err);
	if (r < 0) {
		struct frame frame = call->frame;

		frame_close_fds(&frame);
		return r;
	}
	r = received.reply.code;
	if (r < 0) {
		error_set(err, r, "%s", received.reply.sentence);
		received_deinit(&received);
		ret->is_refused = true;
		return r == -EAGAIN ? CALL_AGAIN : r;
	}
	*ret = received;
	return 0;
}

uint64_t call_peek(const struct call *call, size_t at)
{
	const struct frame *frame = &call->frame;

	if (frame->kind != call->kind || frame->code != 0)
		return 0;
	return reply_peek(frame->kind, frame->body, frame->body_size, at);
}

static void free_list(struct call *call)
{
	while (call) {
		struct call *next = call->next;

		call_free(call);
		call = next;
	}
}

void calls_deinit(struct calls *calls)
{
	free_list(calls->first);
	free_list(calls->idle);
	*calls = CALLS_NULL;
}
