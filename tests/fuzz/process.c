#include "tests/fuzz/process.h"
#include "broker/session/receiver.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "tests/fuzz/kernel.h"
#include "tests/fuzz/seen.h"
#include "tests/fuzz/world.h"
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* No process has such a number, so the broker finds nothing in /proc. */
#define FIRST_PID 5000000

struct process processes[N_PROCESSES];

static uint32_t next_pid = FIRST_PID;

const struct process *process_find(uint32_t pid)
{
	for (int i = 0; i < N_PROCESSES; i++) {
		if (processes[i].pid == pid)
			return &processes[i];
	}
	return NULL;
}

void process_disconnect(struct process *process)
{
	if (process->sock_fd >= 0)
		close(process->sock_fd);
	process->sock_fd = -1;
}

static void forget_session(struct process *process)
{
	if (process->has_session) {
		refs_close(&process->refs);
		close(process->doorbell_fd);
	}
	process->has_session = false;
	process->number = process->answered = 0;
	for (uint32_t i = 0; i < N_FILES; i++) {
		if (process->files[i] >= 0)
			close(process->files[i]);
		process->files[i] = -1;
	}
}

void process_begin(struct process *process, uint32_t uid)
{
	*process = (struct process){.uid = uid, .sock_fd = -1};
	memset(process->files, -1, sizeof(process->files));
	process->pid = next_pid++;
	process->life_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ENSURE(process->life_fd >= 0);
}

void process_end(struct process *process)
{
	forget_session(process);
	process_disconnect(process);
	ENSURE(eventfd_write(process->life_fd, 1) == 0);
	close(process->life_fd);
}

void process_die(struct process *process)
{
	process_end(process);
	process_begin(process, process->uid);
}

void process_connect(struct process *process)
{
	struct error err = ERROR_NULL;
	int fds[2];

	process_disconnect(process);
	ENSURE(socketpair(AF_UNIX,
			  SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0,
			  fds) == 0);
	process->sock_fd = fds[0];
	kernel_set_owner(fds[1], process);
	(void)peer_new(&world_broker->sessions, fds[1], receiver_read, &err);
}

void process_hello(struct process *process, uint64_t budget, const int fds[2])
{
	struct request request = {
		.kind = MESSAGE_HELLO,
		.hello = {.major = PROTOCOL_MAJOR,
			  .minor = PROTOCOL_MINOR,
			  .budget = budget,
			  .is_reconnect = process->has_session,
			  .session = process->session},
	};
	struct frame frame = {.kind = MESSAGE_HELLO, .number = 1};
	uint8_t *body;
	size_t size;

	process_connect(process);
	if (process->has_session) {
		memcpy(request.hello.token, process->token, TOKEN_SIZE);
		frame.n_fds = 2;
		frame.fds[0] = fds ? fds[0] : process->refs.fd;
		frame.fds[1] = fds ? fds[1] : process->doorbell_fd;
	}
	ENSURE(request_encode(&request, &body, &size, NULL) == 0);
	frame.body = body;
	frame.body_size = (uint32_t)size;
	(void)frame_send(process->sock_fd, &frame, NULL);
	free(body);
	world_run(true);
	process_read(process);
}

static void begin_session(struct process *process,
			  const struct hello_reply *hello, struct frame *frame)
{
	struct error err = ERROR_NULL;

	if (frame->n_fds != 3)
		return;
	forget_session(process);
	process->has_session = true;
	process->session = hello->session;
	memcpy(process->token, hello->token, TOKEN_SIZE);
	ENSURE(refs_open(&process->refs, frame->fds[1], REFS_CLIENT, &err) ==
	       0);
	process->doorbell_fd = frame->fds[2];
	frame->fds[1] = frame->fds[2] = -1;
}

static void keep_files(struct process *process, struct frame *frame)
{
	for (uint16_t i = 0; i < frame->n_fds; i++) {
		int *file = &process->files[process->n_files++ % N_FILES];

		if (*file >= 0)
			close(*file);
		*file = frame->fds[i];
		frame->fds[i] = -1;
	}
}

static void print(const struct process *process, const struct frame *frame,
		  const struct reply *reply)
{
	if (getenv("FSDP_FUZZ_LOG"))
		fprintf(stderr, "%u: %s: %d%s%s\n", process->pid,
			message_kind_name(frame->kind), frame->code,
			frame->code < 0 ? " " : "",
			frame->code < 0 ? reply->sentence : "");
}

static void take_frame(struct process *process, struct frame *frame)
{
	struct error err = ERROR_NULL;
	struct reply reply;

	/* The refusal of a kind that does not exist. */
	if (frame->kind == 0 || frame->kind > MESSAGE_MAX) {
		frame_close_fds(frame);
		return;
	}
	if (reply_decode(frame->kind, frame->code, frame->body,
			 frame->body_size, &reply, &err) < 0) {
		fprintf(stderr, "the reply of kind %u is wrong: %s\n",
			frame->kind, err.msg);
		abort();
	}
	print(process, frame, &reply);
	if (frame->code >= 0) {
		seen_reply(&reply);
		if (frame->kind == MESSAGE_HELLO && !reply.hello.is_challenge)
			begin_session(process, &reply.hello, frame);
		else if (frame->kind == MESSAGE_GOODBYE)
			forget_session(process);
		else
			keep_files(process, frame);
	} else if (frame->kind == MESSAGE_HELLO) {
		forget_session(process);
	}
	reply_deinit(&reply);
	frame_close_fds(frame);
}

void process_read(struct process *process)
{
	static uint8_t buffer[FRAME_MAX_SIZE];
	struct error err = ERROR_NULL;
	struct frame frame;
	int r = FRAME_OK;

	while (process->sock_fd >= 0 && r == FRAME_OK) {
		r = frame_recv(process->sock_fd, buffer, &frame, NULL, &err);
		if (r == FRAME_OK)
			take_frame(process, &frame);
	}
	if (r != FRAME_OK && r != FRAME_AGAIN)
		process_disconnect(process);
}
