/*
 * Raw frames. All waits have a limit, so that a test fails instead of hanging.
 * No test depends on its length.
 */
#include "tests/lib/wire.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include "tests/lib/memory.h"
#include "tests/lib/patience.h"
#include "tests/lib/wire_device.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void __attribute__((noreturn)) die(const char *what, const char *why)
{
	fprintf(stderr, "wire: %s: %s\n", what, why);
	abort();
}

struct wire *wire_connect(const char *path)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	struct wire *wire = calloc(1, sizeof(*wire));

	if (!wire)
		die("connect", "no memory");
	strncpy(address.sun_path, path, sizeof(address.sun_path) - 1);
	wire->table_fd = wire->refs_fd = wire->doorbell_fd = -1;
	wire->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	if (connect(wire->fd, (struct sockaddr *)&address, sizeof(address)) ==
	    0)
		return wire;
	wire_close(wire);
	return NULL;
}

static void close_fd(int *fd)
{
	if (*fd >= 0)
		close(*fd);
	*fd = -1;
}

static void forget_answer(struct wire *wire)
{
	frame_close_fds(&wire->frame);
	reply_deinit(&wire->reply);
	wire->frame = (struct frame){0};
	wire->reply = (struct reply){0};
}

void wire_close(struct wire *wire)
{
	int r = errno;

	if (!wire)
		return;
	forget_answer(wire);
	close_fd(&wire->fd);
	close_fd(&wire->table_fd);
	close_fd(&wire->refs_fd);
	close_fd(&wire->doorbell_fd);
	free(wire);
	errno = r;
}

int wire_receive(struct wire *wire)
{
	struct pollfd pollfd = {.fd = wire->fd, .events = POLLIN};
	struct error err = ERROR_NULL;
	int r;

	forget_answer(wire);
	if (poll(&pollfd, 1, PATIENCE_MS) != 1)
		die("receive", "no answer");
	r = frame_recv(wire->fd, wire->buffer, &wire->frame, NULL, &err);
	if (r < 0)
		die("receive", err.msg);
	if (r != FRAME_OK)
		return r;
	/* A refusal may have no kind if the broker did not understand the
	 * request. */
	if (wire->frame.kind == 0 || wire->frame.kind > MESSAGE_MAX)
		wire->frame.kind = MESSAGE_PING;
	r = reply_decode(wire->frame.kind, wire->frame.code, wire->frame.body,
			 wire->frame.body_size, &wire->reply, &err);
	if (r < 0)
		die("receive", err.msg);
	return FRAME_OK;
}

static void send_frame(struct wire *wire, const struct frame *frame)
{
	struct pollfd pollfd = {.fd = wire->fd, .events = POLLOUT};
	struct error err = ERROR_NULL;
	int r = frame_send(wire->fd, frame, &err);

	while (r == FRAME_AGAIN) {
		if (poll(&pollfd, 1, PATIENCE_MS) != 1)
			die("send", "nobody reads");
		r = frame_send(wire->fd, frame, &err);
	}
	if (r < 0)
		die("send", err.msg);
}

void wire_send_body(struct wire *wire, uint16_t kind, uint64_t number,
		    const void *body, size_t size, const int *fds,
		    uint16_t n_fds)
{
	struct frame frame = {.kind = kind,
			      .number = number,
			      .body = body,
			      .body_size = (uint32_t)size,
			      .n_fds = n_fds};

	for (uint16_t i = 0; i < n_fds; i++)
		frame.fds[i] = fds[i];
	send_frame(wire, &frame);
}

/* The device for requests that name no device. It is the host until this
 * process has sent hello. */
static struct device_uuid default_device;

static void move_device(struct device_uuid *device)
{
	if (device_uuid_is_host(device))
		*device = default_device;
}

static void move_request(struct request *request)
{
	switch (request->kind) {
	case MESSAGE_ALLOC:
		move_device(&request->alloc.device);
		break;
	case MESSAGE_BUNDLE_BEGIN:
		move_device(&request->bundle_begin.device);
		break;
	case MESSAGE_COMM_JOIN:
		move_device(&request->comm_join.device);
		/* No process calls NCCL with this id, so its value does not
		 * matter. */
		request->comm_join.has_nccl_id =
			!device_uuid_is_host(&request->comm_join.device);
		break;
	default:
		break;
	}
}

void wire_resend(struct wire *wire, const struct request *request,
		 const int *fds, uint16_t n_fds)
{
	struct error err = ERROR_NULL;
	struct frame frame = {.kind = request->kind, .n_fds = n_fds};
	struct request moved = *request;
	uint8_t *body;
	size_t size;

	move_request(&moved);
	if (request_encode(&moved, &body, &size, &err) < 0)
		die("send", err.msg);
	/* There is one request at a time, so the reply to each earlier one was
	 * received. */
	frame.number = wire->number;
	frame.answered = wire->is_repeating ? 0 : wire->number;
	frame.body = body;
	frame.body_size = (uint32_t)size;
	for (uint16_t i = 0; i < n_fds; i++)
		frame.fds[i] = fds[i];
	send_frame(wire, &frame);
	free(body);
}

void wire_send(struct wire *wire, const struct request *request)
{
	wire->number++;
	wire_resend(wire, request, NULL, 0);
}

int wire_call(struct wire *wire, const struct request *request)
{
	wire_send(wire, request);
	if (wire_receive(wire) != FRAME_OK)
		return -ECONNRESET;
	return wire->frame.code;
}

const char *wire_sentence(const struct wire *wire)
{
	return wire->reply.sentence ? wire->reply.sentence : "";
}

void wire_must(const struct wire *wire, int r)
{
	cr_assert(zero(int, r), "%s", wire_sentence(wire));
}

void wire_says(const struct wire *wire, const char *part)
{
	cr_assert(ne(ptr, strstr(wire_sentence(wire), part), NULL),
		  "\"%s\" does not say \"%s\"", wire_sentence(wire), part);
}

void wire_take_session(struct wire *wire)
{
	if (wire->frame.n_fds != 3)
		die("hello", "not three descriptors");
	wire->session = wire->reply.hello.session;
	memcpy(wire->token, wire->reply.hello.token, TOKEN_SIZE);
	wire->table_fd = wire->frame.fds[0];
	wire->refs_fd = wire->frame.fds[1];
	wire->doorbell_fd = wire->frame.fds[2];
	wire->frame.n_fds = 0;
	if (are_on_devices() && device_uuid_is_host(&default_device))
		default_device = wire_gpu(wire, 0);
}

int wire_hello(struct wire *wire, uint64_t budget)
{
	const struct request hello = {
		.kind = MESSAGE_HELLO,
		.hello = {.major = PROTOCOL_MAJOR, .budget = budget},
	};
	int r = wire_call(wire, &hello);

	if (r == 0)
		wire_take_session(wire);
	return r;
}

struct wire *wire_open(const char *path)
{
	struct wire *wire = wire_connect(path);

	if (!wire)
		die("connect", strerror(errno));
	if (wire_hello(wire, 0) < 0)
		die("hello", wire_sentence(wire));
	return wire;
}

void wire_goodbye(struct wire *wire)
{
	const struct request goodbye = {.kind = MESSAGE_GOODBYE};

	(void)wire_call(wire, &goodbye);
	wire_close(wire);
}

/* --- requests ------------------------------------------------------------ */

static int call_for_place(struct wire *wire, const struct request *request,
			  struct tensor_place *ret)
{
	int r = wire_call(wire, request);

	if (r == 0 && ret)
		*ret = wire->reply.places.places[0];
	return r;
}

struct request wire_alloc_request(struct alloc_item *item, int64_t size)
{
	*item = (struct alloc_item){
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {size}},
		.name = "",
	};
	tensor_type_contiguous(&item->type);
	return (struct request){
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT},
			  .timeout_ms = -1,
			  .n_items = 1,
			  .items = item},
	};
}

struct request wire_begin_request(const char *name, uint64_t size_hint)
{
	return (struct request){
		.kind = MESSAGE_BUNDLE_BEGIN,
		.bundle_begin = {.name = name,
				 .access = {.gid = GID_DEFAULT},
				 .size_hint = size_hint},
	};
}

int wire_alloc(struct wire *wire, int64_t size,
	       const struct access_class *access, int32_t timeout_ms,
	       struct tensor_place *ret)
{
	struct alloc_item item;
	struct request request = wire_alloc_request(&item, size);

	request.alloc.timeout_ms = timeout_ms;
	if (access)
		request.alloc.access = *access;
	return call_for_place(wire, &request, ret);
}

int wire_publish(struct wire *wire, const struct slot_ref *ref,
		 const char *name, uint32_t flags)
{
	struct publish_item item = {.ref = *ref, .name = name, .flags = flags};
	const struct request request = {
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = 1, .items = &item},
	};

	return wire_call(wire, &request);
}

int wire_get(struct wire *wire, const char *name, struct tensor_place *ret)
{
	const struct request request = {
		.kind = MESSAGE_GET,
		.get = {.n_names = 1, .names = &name},
	};

	return call_for_place(wire, &request, ret);
}

int wire_release(struct wire *wire, const struct slot_ref *ref)
{
	struct release_item item = {.ref = *ref, .n_holds = 1};
	const struct request request = {
		.kind = MESSAGE_RELEASE,
		.release = {.n_items = 1, .items = &item},
	};

	return wire_call(wire, &request);
}

int wire_put(struct wire *wire, const char *name, int64_t size,
	     const struct access_class *access, struct tensor_place *ret)
{
	struct tensor_place place;
	int r = wire_alloc(wire, size, access, -1, &place);

	if (r == 0)
		r = wire_publish(wire, &place.ref, name, 0);
	if (r == 0)
		r = wire_release(wire, &place.ref);
	if (r == 0 && ret)
		*ret = place;
	return r;
}

int wire_remove(struct wire *wire, const char *name)
{
	const struct request request = {
		.kind = MESSAGE_REMOVE,
		.remove = {.n_names = 1, .names = &name},
	};

	return wire_call(wire, &request);
}

int wire_chunk(struct wire *wire, uint32_t chunk)
{
	const struct request request = {
		.kind = MESSAGE_CHUNK,
		.chunk = {.n_chunks = 1, .chunks = &chunk},
	};
	int r = wire_call(wire, &request);
	int fd;

	if (r < 0)
		return r;
	if (wire->frame.n_fds != 1)
		die("chunk", "not one descriptor");
	fd = wire->frame.fds[0];
	wire->frame.n_fds = 0;
	return fd;
}

/* Compares a counter of the status with a name, in the memory that the test
 * uses. Devices are in order, so the first device is found first. */
static bool is_counter(const char *counter, const char *name)
{
	static const char *const names[][2] = {
		{"bytes_live", "device_bytes_live"},
		{"own_bytes", "own_device_bytes"},
	};

	if (!are_on_devices())
		return strcmp(counter, name) == 0;
	if (strcmp(name, "chunk_bytes") == 0)
		return strncmp(counter, "GPU-", 4) == 0 &&
		       strstr(counter, "_chunk_bytes");
	for (size_t i = 0; i < 2; i++) {
		if (strcmp(name, names[i][0]) == 0)
			name = names[i][1];
	}
	return strcmp(counter, name) == 0;
}

uint64_t wire_status(struct wire *wire, const char *name)
{
	const struct request request = {.kind = MESSAGE_STATUS};
	const struct status_reply *status = &wire->reply.status;

	if (wire_call(wire, &request) < 0)
		die("status", wire_sentence(wire));
	for (uint32_t i = 0; i < status->n_values; i++) {
		if (is_counter(status->values[i].name, name))
			return status->values[i].value;
	}
	die("status", name);
}

void wire_wait_status(struct wire *wire, const char *name, uint64_t value)
{
	for (int i = 0; wire_status(wire, name) != value; i++) {
		if (i > PATIENCE_MS)
			die(name, "does not become what it should be");
		poll(NULL, 0, 1);
	}
}

/* --- counters ------------------------------------------------------------ */

static const char *const counters[WIRE_N_COUNTS] = {
	"slots",           "slots_limbo", "blocks",      "bundles",
	"tickets",         "grants",      "sessions",    "waiters",
	"chunks",          "bytes_live",  "own_bytes",   "own_slots",
	"own_queue_bytes", "published",   "freed_slots",
};

uint64_t *wire_counts_at(struct wire_counts *counts, const char *name)
{
	for (size_t i = 0; i < WIRE_N_COUNTS; i++) {
		if (strcmp(counters[i], name) == 0)
			return &counts->values[i];
	}
	die("no such counter", name);
}

void wire_count(struct wire *wire, struct wire_counts *ret)
{
	const struct status_reply *status = &wire->reply.status;

	/* The reply to this request contains all of them. */
	(void)wire_status(wire, counters[0]);
	*ret = (struct wire_counts){0};
	for (size_t i = 0; i < WIRE_N_COUNTS; i++) {
		for (uint32_t j = 0; j < status->n_values; j++) {
			if (is_counter(status->values[j].name, counters[i]))
				ret->values[i] = status->values[j].value;
		}
	}
}

const char *wire_counts_differ(const struct wire_counts *a,
			       const struct wire_counts *b)
{
	for (size_t i = 0; i < WIRE_N_COUNTS; i++) {
		if (a->values[i] != b->values[i])
			return counters[i];
	}
	return NULL;
}
