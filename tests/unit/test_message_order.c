/*
 * What orders tensors, in messages: events beside timelines, and the word that
 * they are done.
 */
#include "proto/error.h"
#include "proto/message.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static const uint8_t EVENT[MESSAGE_HANDLE_SIZE] = {
	1, 'e', [16] = 7, [MESSAGE_HANDLE_SIZE - 1] = 9};

/* Encode and decode; gives the code of decoding. */
static int pass(const struct request *request, struct request *ret)
{
	struct error err = ERROR_NULL;
	uint8_t *bytes;
	size_t size;
	int r;

	cr_assert(zero(int, request_encode(request, &bytes, &size, &err)), "%s",
		  err.msg);
	r = request_decode(request->kind, bytes, size, ret, &err);
	cr_assert(r == 0 || *err.msg);
	free(bytes);
	return r;
}

static int pass_reply(const struct reply *reply, struct reply *ret)
{
	struct error err = ERROR_NULL;
	uint8_t *bytes;
	size_t size;
	int r;

	cr_assert(zero(int, reply_encode(reply, &bytes, &size, &err)), "%s",
		  err.msg);
	r = reply_decode(reply->kind, reply->code, bytes, size, ret, &err);
	cr_assert(r == 0 || *err.msg);
	free(bytes);
	return r;
}

Test(message_order, a_publication_has_an_event_or_a_timeline)
{
	struct publish_item items[] = {
		{.ref = {1, 2}, .name = "x/y", .event = EVENT},
		{.ref = {3, 4}, .name = "", .timeline = 1, .value = 5},
		{.ref = {5, 6}, .name = "z", .event = EVENT},
	};
	const struct request sent = {.kind = MESSAGE_PUBLISH,
				     .publish = {3, items}};
	struct request got;

	cr_assert(zero(int, pass(&sent, &got)));
	for (int i = 0; i < 3; i += 2) {
		cr_assert(ne(ptr, (void *)got.publish.items[i].event, NULL));
		cr_expect(zero(int, memcmp(got.publish.items[i].event, EVENT,
					   sizeof(EVENT))));
		cr_expect(eq(str, (char *)got.publish.items[i].name,
			     (char *)items[i].name));
	}
	cr_expect(eq(ptr, (void *)got.publish.items[1].event, NULL));
	request_deinit(&got);
	items[0].timeline = 1;
	cr_expect(eq(int, pass(&sent, &got), -EINVAL), "both");
	items[0].value = 1;
	cr_expect(eq(int, pass(&sent, &got), -EINVAL), "both");
}

Test(message_order, an_event_of_another_size_is_refused)
{
	/* one item: {slot 1, generation 1, event of 2 bytes} */
	const uint8_t body[] = {0x0a, 8, 0x08, 1, 0x10, 1, 0x42, 2, 1, 'e'};
	struct error err = ERROR_NULL;
	struct request got;

	cr_expect(eq(
		int,
		request_decode(MESSAGE_PUBLISH, body, sizeof(body), &got, &err),
		-EINVAL));
	cr_expect(ne(ptr, strstr(err.msg, "96"), NULL), "%s", err.msg);
}

Test(message_order, what_is_done_arrives)
{
	struct ordered_item items[] = {
		{{1, 2}, 3}, {{UINT32_MAX, UINT64_MAX}, INT64_MAX - 1}};
	const struct request sent = {.kind = MESSAGE_ORDERED,
				     .ordered = {2, items}};
	const struct reply yes = {.kind = MESSAGE_ORDERED};
	struct request got;
	struct reply reply;

	cr_assert(zero(int, pass(&sent, &got)));
	cr_assert(eq(u32, got.ordered.n_items, 2));
	cr_expect(zero(int, memcmp(&got.ordered.items[1].ref, &items[1].ref,
				   sizeof(uint32_t))));
	cr_expect(eq(u64, got.ordered.items[1].ref.generation, UINT64_MAX));
	cr_expect(eq(u64, got.ordered.items[1].event, INT64_MAX - 1));
	cr_expect(eq(u32, got.ordered.items[0].ref.slot, 1));
	cr_expect(eq(u64, got.ordered.items[0].event, 3));
	request_deinit(&got);
	cr_expect(zero(int, pass_reply(&yes, &reply)));
	reply_deinit(&reply);
	cr_expect(
		eq(str, (char *)message_kind_name(MESSAGE_ORDERED), "ordered"));
}

Test(message_order, what_cannot_be_done_is_refused)
{
	struct ordered_item items[MESSAGE_MAX_ITEMS + 1] = {{{1, 2}, 3}};
	struct request sent = {.kind = MESSAGE_ORDERED, .ordered = {1, items}};
	struct request got;

	items[0].event = 0;
	cr_expect(eq(int, pass(&sent, &got), -EINVAL));
	items[0].event = INT64_MAX;
	cr_expect(eq(int, pass(&sent, &got), -EINVAL));
	items[0] = (struct ordered_item){{0, 2}, 3};
	cr_expect(eq(int, pass(&sent, &got), -EINVAL));
	sent.ordered.n_items = 0;
	cr_expect(eq(int, pass(&sent, &got), -EINVAL));
	sent.ordered.n_items = MESSAGE_MAX_ITEMS + 1;
	cr_expect(eq(int, pass(&sent, &got), -E2BIG));
}

Test(message_order, whose_timelines_may_be_an_event)
{
	struct reply sent = {.kind = MESSAGE_TIMELINES,
			     .timelines = {.session = 5, .has_event = true}};
	struct reply got;

	memcpy(sent.timelines.event, EVENT, sizeof(EVENT));
	cr_assert(zero(int, pass_reply(&sent, &got)));
	cr_expect(eq(u64, got.timelines.session, 5));
	cr_expect(got.timelines.has_event);
	cr_expect(zero(int, memcmp(got.timelines.event, EVENT, sizeof(EVENT))));
	reply_deinit(&got);
	sent.timelines.has_event = false;
	cr_assert(zero(int, pass_reply(&sent, &got)));
	cr_expect(not(got.timelines.has_event));
	reply_deinit(&got);
}

Test(message_order, a_place_says_which_event_orders_it)
{
	struct tensor_place place = {
		.ref = {1, 2},
		.chunk = 3,
		.size = 4,
		.type = {.dtype = DTYPE_F32},
		.order = {.session = 5, .value = 6},
	};
	const struct reply sent = {.kind = MESSAGE_GET,
				   .places = {.n_places = 1, .places = &place}};
	struct reply got;

	cr_assert(zero(int, pass_reply(&sent, &got)));
	cr_expect(eq(u64, got.places.places[0].order.session, 5));
	cr_expect(zero(u32, got.places.places[0].order.timeline));
	cr_expect(eq(u64, got.places.places[0].order.value, 6));
	reply_deinit(&got);
	place.order.value = INT64_MAX;
	cr_expect(eq(int, pass_reply(&sent, &got), -EINVAL));
	place.order.value = 0;
	cr_expect(eq(int, pass_reply(&sent, &got), -EPROTO));
}
