/*
 * Sequences of requests of several users, half of them valid, to a whole broker
 * (world.h), and what else processes may do: die, reconnect, write anything to
 * the files that they share with the broker. Nothing may reach an assertion,
 * hold the loop for long, or leave anything when all processes have ended and
 * all names were removed.
 *
 * An input is a list of operations, with a byte SEPARATOR after each, so that a
 * change of one leaves the others as they are. The first byte of each chooses
 * the process and the operation; the bytes of a request follow (fill.h). With
 * FSDP_FUZZ_LOG in the environment, replies and the broker's log are printed.
 */
#include "proto/error.h"
#include "proto/frame.h"
#include "proto/message.h"
#include "tests/fuzz/fill.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/kernel.h"
#include "tests/fuzz/process.h"
#include "tests/fuzz/seen.h"
#include "tests/fuzz/worker.h"
#include "tests/fuzz/world.h"
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define SEPARATOR      0xfe
#define MAX_OPERATIONS 200

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* --- requests ------------------------------------------------------------- */

/* Returns a descriptor as a client could send one, or -1. */
static int make_fd(struct input *input)
{
	int fds[2], fd;

	switch (input_below(input, 6)) {
	case 0:
		return eventfd(0, EFD_CLOEXEC);
	case 1:
		return open("/dev/null", O_RDWR | O_CLOEXEC);
	case 2:
		return open("/", O_PATH | O_CLOEXEC);
	case 3:
		if (pipe2(fds, O_CLOEXEC) < 0)
			return -1;
		close(fds[1]);
		return fds[0];
	case 4:
		return socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	default:
		fd = memfd_create("fuzz", MFD_CLOEXEC | MFD_ALLOW_SEALING);
		if (fd >= 0 && input_byte(input) & 1)
			(void)ftruncate(fd, 1 << 20);
		return fd;
	}
}

/* How a request is sent, apart from its body: 0 is as clients do. */
enum {
	SEND_ONE_WAY = 1,
	SEND_WITH_FD = 2,
	SEND_AGAIN = 4,      /* under the number of the last one */
	SEND_UNANSWERED = 8, /* do not confirm earlier replies */
};

static void send_body(struct process *process, struct input *input,
		      uint16_t kind, const uint8_t *body, size_t size)
{
	uint8_t how = input_byte(input);
	struct frame frame = {.kind = kind, .body = body};

	if (process->sock_fd < 0)
		return;
	how = how < 192 ? 0 : how;
	if (!(how & SEND_AGAIN) || process->number == 0)
		process->number++;
	if (!(how & SEND_UNANSWERED))
		process->answered = process->number;
	frame.number = process->number;
	frame.answered = process->answered;
	frame.body_size = (uint32_t)size;
	frame.is_one_way = how & SEND_ONE_WAY;
	if (how & SEND_WITH_FD || kind == MESSAGE_SHARE) {
		frame.fds[0] = make_fd(input);
		frame.n_fds = frame.fds[0] >= 0;
	}
	(void)frame_send(process->sock_fd, &frame, NULL);
	frame_close_fds(&frame);
}

static void send_request(struct process *process, struct input *input)
{
	uint16_t kind = (uint16_t)(4 + input_below(input, MESSAGE_MAX - 3));
	struct request request;
	uint8_t *body;
	size_t size;

	fill_request(input, kind, &request);
	if (request_encode(&request, &body, &size, NULL) < 0)
		return;
	send_body(process, input, kind, body, size);
	free(body);
}

static void send_raw(struct process *process, struct input *input)
{
	uint16_t kind = (uint16_t)(input_byte(input) % (MESSAGE_MAX + 2));
	uint8_t body[64];
	uint32_t size = input_below(input, sizeof(body) + 1);

	for (uint32_t i = 0; i < size; i++)
		body[i] = input_byte(input);
	send_body(process, input, kind, body, size);
}

/* --- shared memory -------------------------------------------------------- */

static void use_refs(struct process *process, struct input *input)
{
	const struct table *table = &world_broker->store.table;
	struct slot_ref ref = seen_ref(input);
	bool rings = false;

	if (!process->has_session || ref.slot >= TABLE_SLOTS)
		return;
	if (input_byte(input) & 1)
		rings = refs_acquire(&process->refs, table, ref.slot,
				     ref.generation) == REFS_STALE_RING;
	else
		rings = refs_release(&process->refs, table, ref.slot);
	if (rings)
		(void)eventfd_write(process->doorbell_fd, 1);
}

/* Returns any word, or one as channels have it (shm/slots.h). */
static uint64_t choose_word(struct input *input)
{
	uint8_t byte = input_byte(input);

	if (byte >= 64)
		return input_odd(input);
	return (uint64_t)input_byte(input) << 16 | (uint64_t)byte;
}

static void scribble_file(struct process *process, struct input *input)
{
	int file = process->files[input_below(input, N_FILES)];
	uint64_t word = choose_word(input);
	uint32_t at = input_byte(input);

	if (input_byte(input) & 1)
		at |= (uint32_t)input_byte(input) << 8;
	if (file >= 0)
		(void)pwrite(file, &word, sizeof(word), (off_t)at * 8);
}

static void scribble_refs(struct process *process, struct input *input)
{
	struct slot_ref ref = seen_ref(input);
	struct refs_entry *entry;
	uint32_t at = ref.slot / 64;

	if (!process->has_session || ref.slot >= TABLE_SLOTS)
		return;
	entry = &process->refs.entries[ref.slot];
	atomic_store(&entry->delta, (int32_t)input_odd(input));
	atomic_store(&entry->timeline, (uint16_t)input_byte(input));
	atomic_store(&entry->fence, input_odd(input));
	atomic_store(&process->refs.bitmap[at], input_odd(input));
	atomic_store(&process->refs.summary[at / 64], input_odd(input));
}

/* Write anything to one of the files that the process shares. */
static void scribble(struct process *process, struct input *input)
{
	if (input_byte(input) & 1)
		scribble_file(process, input);
	else
		scribble_refs(process, input);
}

static void ring(struct process *process)
{
	if (process->has_session)
		(void)eventfd_write(process->doorbell_fd, 1);
}

/* --- operations ----------------------------------------------------------- */

static void sleep_some(struct input *input)
{
	static const uint64_t times[] = {1, 60, 1000, 70000, 4000000};

	world_sleep(times[input_below(input, 5)]);
}

/* Say hello, sometimes with other files than those of the session. */
static void say_hello(struct process *process, struct input *input)
{
	uint8_t byte = input_byte(input);
	int fds[2];

	if (byte < 128) {
		process_hello(process, byte ? 0 : 1 << 20, NULL);
		return;
	}
	fds[0] = byte & 1 ? make_fd(input)
			  : fcntl(process->refs.fd, F_DUPFD_CLOEXEC, 3);
	fds[1] = make_fd(input);
	if (process->has_session && fds[0] >= 0 && fds[1] >= 0)
		process_hello(process, 0, fds);
	for (int i = 0; i < 2; i++) {
		if (fds[i] >= 0)
			close(fds[i]);
	}
}

/* Lower a limit, as a reload of the configuration may do. */
static void limit(struct input *input)
{
	struct config *config = &world_broker->base.config;
	uint64_t *const quotas[] = {
		&config->quota_slots,   &config->quota_sessions,
		&config->quota_waiting, &config->quota_prefixes,
		&config->quota_chunks,  &config->quota_grants,
		&config->quota_tickets, &config->quota_bundles,
		&config->quota_groups,  &config->quota_timelines,
		&config->quota_bytes,   &config->quota_queue,
		&config->quota_refs};
	uint32_t i = input_below(input, sizeof(quotas) / sizeof(*quotas));

	/* The last ones are in bytes. */
	*quotas[i] = (uint64_t)input_byte(input) << (i < 10 ? 0 : 16);
}

static void operate(struct process *process, struct input *input, uint8_t what)
{
	switch (what) {
	case 63:
		process_die(process);
		break;
	case 62:
		process_disconnect(process);
		break;
	case 61:
		say_hello(process, input);
		break;
	case 60:
		world_restart();
		break;
	case 59:
		sleep_some(input);
		break;
	case 58:
	case 57:
	case 56:
		use_refs(process, input);
		break;
	case 55:
		scribble(process, input);
		break;
	case 54:
		ring(process);
		break;
	case 53:
		send_raw(process, input);
		break;
	case 52:
		process_connect(process);
		break;
	case 51:
		keeper_refuse(input_byte(input) & 1 ? -EAGAIN : -ENFILE);
		break;
	case 49:
		limit(input);
		break;
	case 50:
		worker_act(input);
		break;
	default:
		if (process->sock_fd < 0)
			process_hello(process, 0, NULL);
		send_request(process, input);
	}
}

static void take_step(struct input *input)
{
	uint8_t byte = input_byte(input);

	operate(&processes[byte >> 6], input, byte & 63);
	/* Some operations meet in one round of the loop, or the work of a
	 * thread. */
	if (byte & 1 || (byte & 63) >= 49)
		world_run(!(byte & 2));
	for (int i = 0; i < N_PROCESSES; i++)
		process_read(&processes[i]);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const uint8_t *end = data + size, *next;

	/* Nothing is logged, unless a request of root's changes the level. */
	if (!getenv("FSDP_FUZZ_LOG"))
		log_set_level((enum log_level)0);
	world_open();
	for (int i = 0; i < MAX_OPERATIONS && data < end; i++) {
		next = memchr(data, SEPARATOR, (size_t)(end - data));
		next = next ? next : end;
		take_step(&(struct input){data, next});
		data = next + 1;
	}
	world_close();
	return 0;
}
