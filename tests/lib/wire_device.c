/*
 * Raw requests for devices.
 */
#include "tests/lib/wire_device.h"
#include "proto/error.h"
#include "tests/lib/wire_repeat.h"
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void __attribute__((noreturn)) die(const char *what, const char *why)
{
	fprintf(stderr, "wire: %s: %s\n", what, why);
	abort();
}

static int dup_fd(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	if (copy < 0)
		die("dup", strerror(errno));
	return copy;
}

/* --- looking ------------------------------------------------------------- */

static int hex(char c)
{
	return c <= '9' ? c - '0' : c - 'a' + 10;
}

/* The text has the form of cuda/device.h, "GPU-01234567-...". */
static struct device_uuid parse(const char *text)
{
	struct device_uuid uuid = {{0}};
	size_t n = 0;

	for (const char *at = text + 4; n < 2 * DEVICE_UUID_SIZE; at++) {
		if (*at == '-')
			continue;
		uuid.bytes[n / 2] =
			(uint8_t)(uuid.bytes[n / 2] << 4 | hex(*at));
		n++;
	}
	return uuid;
}

struct device_uuid wire_gpu(struct wire *wire, uint32_t i)
{
	const struct status_reply *status = &wire->reply.status;

	wire_wait_status(wire, "driver_loading", 0);
	for (uint32_t j = 0; j < status->n_values; j++) {
		const char *name = status->values[j].name;

		if (strncmp(name, "GPU-", 4) == 0 &&
		    strstr(name, "_chunk_bytes") && i-- == 0)
			return parse(name);
	}
	die("status", "has no such device");
}

const char *wire_note(struct wire *wire)
{
	wire_wait_status(wire, "driver_loading", 0);
	return wire->reply.status.note;
}

uint64_t wire_word(struct wire *wire, uint32_t slot)
{
	struct table table = TABLE_NULL;
	struct error err = ERROR_NULL;
	uint64_t word;

	if (table_open(&table, dup_fd(wire->table_fd), false, &err) < 0)
		die("state table", err.msg);
	word = table_load(&table, slot);
	table_close(&table);
	return word;
}

/* --- requests ------------------------------------------------------------ */

int wire_alloc_on(struct wire *wire, const struct device_uuid *device,
		  int64_t size, int32_t timeout_ms, struct tensor_place *ret)
{
	struct alloc_item item = {
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {size}},
		.name = "",
	};
	const struct request request = {
		.kind = MESSAGE_ALLOC,
		.alloc = {.access = {.gid = GID_DEFAULT, .mode = 0644},
			  .timeout_ms = timeout_ms,
			  .n_items = 1,
			  .items = &item,
			  .device = *device},
	};
	int r;

	tensor_type_contiguous(&item.type);
	r = wire_call(wire, &request);
	if (r == 0 && ret)
		*ret = wire->reply.places.places[0];
	return r;
}

int wire_publish_at(struct wire *wire, const struct slot_ref *ref,
		    const char *name, uint32_t timeline, uint64_t value)
{
	struct publish_item item = {
		.ref = *ref,
		.name = name,
		.timeline = timeline,
		.value = value,
	};
	const struct request request = {
		.kind = MESSAGE_PUBLISH,
		.publish = {.n_items = 1, .items = &item},
	};

	return wire_call(wire, &request);
}

int wire_timelines(struct wire *wire, uint64_t session,
		   const struct slot_ref *ref, bool is_writable,
		   struct timelines *ret)
{
	struct request request = {
		.kind = MESSAGE_TIMELINES,
		.timelines = {.session = session,
			      .wants_writable = is_writable},
	};
	struct error err = ERROR_NULL;
	int r;

	if (ref)
		request.timelines.ref = *ref;
	r = wire_call(wire, &request);
	if (r < 0)
		return r;
	if (wire->frame.n_fds != 1)
		die("timelines", "not one descriptor");
	wire->frame.n_fds = 0;
	if (timelines_open(ret, wire->frame.fds[0], !session || is_writable,
			   &err) < 0)
		die("timelines", err.msg);
	return 0;
}

int wire_resume(struct wire **wire, const char *path)
{
	struct wire *old = *wire, *new = wire_connect(path);
	struct request hello = wire_reconnect_hello(old);
	const int fds[2] = {old->refs_fd, old->doorbell_fd};
	uint8_t *body;
	size_t size;
	int r;

	if (!new)
		die("connect", strerror(errno));
	if (request_encode(&hello, &body, &size, NULL) < 0)
		die("hello", "no memory");
	new->number = old->number + 1;
	wire_send_body(new, MESSAGE_HELLO, new->number, body, size, fds, 2);
	free(body);
	if (wire_receive(new) != FRAME_OK)
		die("hello", "nobody answers");
	r = new->frame.code;
	new->session = old->session;
	memcpy(new->token, old->token, TOKEN_SIZE);
	new->table_fd = dup_fd(old->table_fd);
	new->refs_fd = dup_fd(old->refs_fd);
	new->doorbell_fd = dup_fd(old->doorbell_fd);
	wire_close(old);
	*wire = new;
	return r;
}

/* --- devices ------------------------------------------------------------- */

void wire_reach(struct timelines *timelines, uint32_t timeline, uint64_t value)
{
	uint8_t *at = (uint8_t *)timelines->pages + timeline * TIMELINE_STRIDE;

	/* Release: a device writes its counters in this order, too. */
	atomic_store_explicit((_Atomic uint64_t *)(void *)at, value,
			      memory_order_release);
}

void wire_release_at(struct wire *wire, const struct slot_ref *ref,
		     uint32_t timeline, uint64_t value)
{
	struct table table = TABLE_NULL;
	struct refs refs = REFS_NULL;
	struct error err = ERROR_NULL;
	const uint64_t one = 1;

	if (table_open(&table, dup_fd(wire->table_fd), false, &err) < 0 ||
	    refs_open(&refs, dup_fd(wire->refs_fd), REFS_CLIENT, &err) < 0)
		die("release", err.msg);
	refs.entries[ref->slot].timeline = (uint16_t)timeline;
	refs.entries[ref->slot].fence = value;
	if (refs_release(&refs, &table, ref->slot) &&
	    write(wire->doorbell_fd, &one, sizeof(one)) != sizeof(one))
		die("release", "cannot ring");
	refs_close(&refs);
	table_close(&table);
}
