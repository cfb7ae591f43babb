/*
 * A worker that moves no bytes, for tests of the engine. $FAKE_WORKER selects
 * its behaviour:
 *
 *   good     replies to every job, with the number of chunks it knows as
 *            n_bytes and of plans as ns; ends with status 9 if it receives a
 *            job whose plan, chunks or communicator it does not know
 *   refuse   replies to every job with -ERANGE and a sentence
 *   old      reports another version
 *   mute     reads everything and sends only hello
 *   deaf     sends hello and reads nothing, and ignores a hang-up
 *   crash    dies when the first job comes
 *   stray    replies to a job that it was not given
 */
#include "collective/job.h"
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define MAX_KNOWN 64

union message {
	uint32_t kind;
	struct job_chunk chunk;
	struct job_plan plan;
	struct job job;
	struct job_device device;
	struct job_comm comm;
	struct job_forget_comm forget;
	struct job_compare compare;
};

static uint64_t chunks[MAX_KNOWN], plans[MAX_KNOWN], comms[MAX_KNOWN];

static uint64_t count(const uint64_t *known)
{
	uint64_t n = 0;

	for (int i = 0; i < MAX_KNOWN; i++)
		n += known[i] != 0;
	return n;
}

static void must_know(const uint64_t *known, uint64_t id)
{
	for (int i = 0; i < MAX_KNOWN; i++) {
		if (known[i] == id)
			return;
	}
	exit(9);
}

static void replace(uint64_t *known, uint64_t old, uint64_t new)
{
	for (int i = 0; i < MAX_KNOWN; i++) {
		if (known[i] != old)
			continue;
		known[i] = new;
		return;
	}
	exit(9);
}

static void must_know_range(const struct job_range *range)
{
	if (range->size)
		must_know(chunks, range->chunk);
}

static void check(const struct job *job)
{
	must_know(plans, job->plan);
	must_know_range(&job->shards);
	must_know_range(&job->full);
	must_know_range(&job->grads);
	must_know_range(&job->partial);
	for (int i = 0; i < PLAN_MAX_RANKS; i++)
		must_know_range(&job->inputs[i]);
}

static void check_device(const struct job_device *job)
{
	must_know(comms, job->comm);
	must_know(plans, job->plan);
	for (int i = 0; i < PLAN_MAX_RANKS; i++) {
		must_know_range(&job->ranks[i].reduce.input);
		must_know_range(&job->ranks[i].reduce.grads);
		must_know_range(&job->ranks[i].reduce.partial);
	}
}

static void say(const void *message, size_t size)
{
	if (send(WORKER_FD, message, size, MSG_NOSIGNAL) != (ssize_t)size)
		exit(1);
}

static void answer(uint64_t number, const char *how)
{
	struct job_done done = {
		.kind = JOB_DONE,
		.number = number,
		.n_bytes = count(chunks),
		.ns = count(plans),
	};

	if (strcmp(how, "crash") == 0)
		raise(SIGKILL);
	if (strcmp(how, "mute") == 0)
		return;
	if (strcmp(how, "stray") == 0)
		done.number += 1000;
	if (strcmp(how, "refuse") == 0) {
		done.code = -ERANGE;
		strcpy(done.sentence, "I would rather not");
	}
	say(&done, sizeof(done));
}

static void work(const union message *message, const char *how)
{
	switch (message->kind) {
	case JOB_COMM:
		replace(comms, 0, message->comm.comm);
		answer(message->comm.number, how);
		return;
	case JOB_FORGET_COMM:
		replace(comms, message->forget.comm, 0);
		return;
	case JOB_COMPARE:
		must_know(comms, message->compare.comm);
		answer(message->compare.number, how);
		return;
	case JOB_DEVICE_GATHER:
	case JOB_DEVICE_REDUCE:
		check_device(&message->device);
		answer(message->device.number, how);
		return;
	default:
		check(&message->job);
		answer(message->job.number, how);
	}
}

/* Returns false if the broker has hung up. */
static bool listen_once(const char *how)
{
	char control[CMSG_SPACE(sizeof(int))];
	union message message;
	struct iovec part = {&message, sizeof(message)};
	struct msghdr header = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = control,
		.msg_controllen = sizeof(control),
	};
	int fd;

	if (recvmsg(WORKER_FD, &header, 0) <= 0)
		return false;
	if (header.msg_controllen > 0) {
		memcpy(&fd, CMSG_DATA(CMSG_FIRSTHDR(&header)), sizeof(fd));
		close(fd);
	} else if (message.kind == JOB_CHUNK || message.kind == JOB_PLAN) {
		exit(9);
	}
	if (message.kind == JOB_CHUNK)
		replace(chunks, 0, message.chunk.chunk);
	else if (message.kind == JOB_FORGET_CHUNK)
		replace(chunks, message.chunk.chunk, 0);
	else if (message.kind == JOB_PLAN)
		replace(plans, 0, message.plan.plan);
	else if (message.kind == JOB_FORGET_PLAN)
		replace(plans, message.plan.plan, 0);
	else
		work(&message, how);
	return true;
}

int main(void)
{
	const char *how = getenv("FAKE_WORKER");
	struct job_hello hello = {
		.kind = JOB_HELLO,
		.protocol = JOB_PROTOCOL,
		.n_threads = 1,
		.version = FSDP_VERSION,
		.cpu = "fake",
	};

	if (!how)
		return 2;
	if (strcmp(how, "old") == 0)
		strcpy(hello.version, "0.0.1");
	say(&hello, sizeof(hello));
	while (strcmp(how, "deaf") == 0)
		pause();
	while (listen_once(how))
		;
	return 0;
}
