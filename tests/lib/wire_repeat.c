#include "tests/lib/wire_repeat.h"
#include "tests/lib/check.h"
#include <string.h>

struct wire *repeat_open(const char *path)
{
	struct wire *wire = wire_connect(path);

	cr_assert(ne(ptr, wire, NULL));
	wire->is_repeating = true;
	cr_assert(zero(int, wire_hello(wire, 0)), "%s", wire_sentence(wire));
	return wire;
}

struct request wire_reconnect_hello(const struct wire *wire)
{
	struct request hello = {
		.kind = MESSAGE_HELLO,
		.hello = {.major = PROTOCOL_MAJOR,
			  .is_reconnect = true,
			  .session = wire->session},
	};

	memcpy(hello.hello.token, wire->token, TOKEN_SIZE);
	return hello;
}

int wire_reconnect(struct wire *wire, const struct wire *from,
		   const struct request *hello, int refs_fd, int doorbell_fd)
{
	const int fds[] = {refs_fd, doorbell_fd};

	wire->is_repeating = true;
	wire->number = from->number + 1;
	wire_resend(wire, hello, fds, 2);
	cr_assert(eq(int, wire_receive(wire), FRAME_OK));
	return wire->frame.code;
}

struct request wire_get_request(const char **name, int32_t timeout_ms)
{
	return (struct request){
		.kind = MESSAGE_GET,
		.get = {.timeout_ms = timeout_ms, .n_names = 1, .names = name},
	};
}

struct tensor_place repeat_put(struct wire *wire, const char *name,
			       int64_t size)
{
	struct tensor_place place;

	cr_assert(zero(int, wire_alloc(wire, size, NULL, -1, &place)), "%s",
		  wire_sentence(wire));
	cr_assert(zero(int, wire_publish(wire, &place.ref, name, 0)), "%s",
		  wire_sentence(wire));
	return place;
}

int64_t wire_count_holds(struct wire *wire, const char *name)
{
	const struct request who = {.kind = MESSAGE_WHO, .who = {.name = name}};

	cr_assert(zero(int, wire_call(wire, &who)), "%s", wire_sentence(wire));
	for (uint32_t i = 0; i < wire->reply.who.n_holders; i++) {
		if (wire->reply.who.holders[i].session == wire->session)
			return wire->reply.who.holders[i].holds;
	}
	return 0;
}
