/*
 * This file defines the acts that act.h declares.
 */
#include "tests/lib/act.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define PATTERN UINT64_C(0xa11ce5ec7e7a11ce)

struct act_shared *shared;

static struct wire *me;
static int chunk_fd = -1;
static uint8_t *memory; /* the mapped chunk */

static int said(int r)
{
	snprintf(shared->sentence, sizeof(shared->sentence), "%s",
		 wire_sentence(me));
	return r;
}

int do_connect(void)
{
	me = wire_connect(shared->path);
	if (!me)
		return -errno;
	return said(wire_hello(me, 0));
}

int do_alloc(void)
{
	return said(
		wire_alloc(me, ACT_SIZE, &shared->access, -1, &shared->place));
}

int do_publish(void)
{
	return said(wire_publish(me, &shared->place.ref, shared->name,
				 shared->flags));
}

int do_release(void)
{
	return said(wire_release(me, &shared->place.ref));
}

int do_get(void)
{
	const char *name = shared->name;
	struct request request = {
		.kind = MESSAGE_GET,
		.get = {.is_trust_set = shared->is_trust_set,
			.trusted_uid = shared->trusted_uid,
			.n_names = 1,
			.names = &name},
	};
	int r = said(wire_call(me, &request));

	if (r == 0)
		shared->place = me->reply.places.places[0];
	return r;
}

int do_remove(void)
{
	return said(wire_remove(me, shared->name));
}

int do_ticket(void)
{
	struct request request = {
		.kind = MESSAGE_TICKET,
		.ticket = {.ref = shared->place.ref,
			   .n_uses = 1,
			   .ttl_ms = 3600 * 1000},
	};
	int r = said(wire_call(me, &request));

	if (r == 0)
		memcpy(shared->ticket, me->reply.ticket.ticket, TICKET_SIZE);
	return r;
}

int do_redeem(void)
{
	struct request request = {
		.kind = MESSAGE_REDEEM,
		.redeem = {.n_tickets = 1, .tickets = &shared->ticket},
	};

	return said(wire_call(me, &request));
}

int do_list(void)
{
	struct request request = {
		.kind = MESSAGE_LIST,
		.list = {.prefix = shared->name, .filter = LIST_ALL},
	};
	int r, n = 0;

	shared->n = 0;
	do {
		r = wire_call(me, &request);
		n += r < 0 ? r : (int)me->reply.list.n_items;
		for (uint32_t i = 0; r == 0 && i < me->reply.list.n_items; i++)
			shared->n += me->reply.list.items[i].maker_pid != 0;
		request.list.cursor = me->reply.list.next_cursor;
	} while (r == 0 && request.list.cursor);
	return n;
}

int do_who(void)
{
	struct request request = {
		.kind = MESSAGE_WHO,
		.who = {.name = shared->name},
	};

	return said(wire_call(me, &request));
}

int do_who_slot(void)
{
	struct request request = {
		.kind = MESSAGE_WHO,
		.who = {.name = "", .ref = shared->place.ref},
	};

	return said(wire_call(me, &request));
}

int do_prefixes(void)
{
	struct request request = {.kind = MESSAGE_PREFIXES};
	int r = wire_call(me, &request);

	return r < 0 ? r : (int)me->reply.prefixes.n_items;
}

int do_clients(void)
{
	struct request request = {.kind = MESSAGE_CLIENTS};
	int r = wire_call(me, &request), n = 0;

	for (uint32_t i = 0; r == 0 && i < me->reply.clients.n_items; i++)
		n += me->reply.clients.items[i].uid != getuid();
	shared->n = r == 0 ? (int)me->reply.clients.n_items : 0;
	return r < 0 ? r : n;
}

int do_reset(void)
{
	return wire_call(me, &(struct request){.kind = MESSAGE_STATUS,
					       .status = {true}});
}

int do_chunk(void)
{
	if (chunk_fd >= 0)
		close(chunk_fd);
	chunk_fd = wire_chunk(me, shared->place.chunk);
	return said(chunk_fd < 0 ? chunk_fd : 0);
}

static int map_chunk(int protection)
{
	struct stat status;
	void *at;

	if (fstat(chunk_fd, &status) < 0)
		return -errno;
	at = mmap(NULL, (size_t)status.st_size, protection, MAP_SHARED,
		  chunk_fd, 0);
	if (at == MAP_FAILED)
		return -errno;
	memory = at;
	return 0;
}

int do_map(void)
{
	return map_chunk(shared->protection);
}

int do_protect(void)
{
	return mprotect(memory, 4096, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
}

static int reopen(int fd)
{
	char path[64];
	int again;

	snprintf(path, sizeof(path), "/proc/self/fd/%d", fd);
	again = open(path, shared->open_flags | O_CLOEXEC);
	if (again < 0)
		return -errno;
	close(again);
	return 0;
}

int do_reopen_chunk(void)
{
	return reopen(chunk_fd);
}

int do_reopen_table(void)
{
	return reopen(me->table_fd);
}

int do_map_table_writable(void)
{
	void *at = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED,
			me->table_fd, 0);

	return at == MAP_FAILED ? -errno : 0;
}

int do_map_table_and_protect(void)
{
	void *at = mmap(NULL, 4096, PROT_READ, MAP_SHARED, me->table_fd, 0);

	if (at == MAP_FAILED)
		return 1;
	return mprotect(at, 4096, PROT_READ | PROT_WRITE) < 0 ? -errno : 0;
}

static void on_fault(int number)
{
	(void)number;
	_exit(77);
}

int do_store(void)
{
	pid_t pid = fork();
	int status = 0;

	if (pid == 0) {
		signal(SIGSEGV, on_fault);
		*(volatile uint8_t *)(memory + shared->place.offset) = 1;
		_exit(0);
	}
	waitpid(pid, &status, 0);
	return WIFEXITED(status) && WEXITSTATUS(status) == 77;
}

int do_fill(void)
{
	uint64_t *at = (uint64_t *)(void *)(memory + shared->place.offset);

	for (size_t i = 0; i < ACT_SIZE / sizeof(*at); i++)
		at[i] = PATTERN;
	return 0;
}

int do_scan(void)
{
	const uint64_t *at = (const uint64_t *)(const void *)memory;
	struct stat status;
	int n = 0;

	if (fstat(chunk_fd, &status) < 0)
		return -errno;
	for (size_t i = 0; i < (size_t)status.st_size / sizeof(*at); i++)
		n += at[i] == PATTERN;
	return n;
}

int do_scan_all(void)
{
	struct stat status;
	int n = 0;

	shared->n = 0;
	for (uint32_t id = 1; id < 64; id++) {
		shared->place.chunk = id;
		if (do_chunk() < 0)
			continue;
		if (map_chunk(PROT_READ) < 0 || fstat(chunk_fd, &status) < 0)
			return -1;
		shared->n++;
		n += do_scan();
		munmap(memory, (size_t)status.st_size);
	}
	return n;
}

int do_steal(void)
{
	struct wire *thief = wire_connect(shared->path);
	struct request hello = {
		.kind = MESSAGE_HELLO,
		.hello = {.major = PROTOCOL_MAJOR,
			  .is_reconnect = true,
			  .session = shared->session},
	};
	const int fds[] = {me->refs_fd, me->doorbell_fd};
	uint8_t *body;
	size_t size;
	int r;

	memcpy(hello.hello.token, shared->token, TOKEN_SIZE);
	if (!thief || request_encode(&hello, &body, &size, NULL) < 0)
		return 1;
	wire_send_body(thief, MESSAGE_HELLO, 1, body, size, fds, 2);
	r = wire_receive(thief) == FRAME_OK ? thief->frame.code : 2;
	snprintf(shared->sentence, sizeof(shared->sentence), "%s",
		 wire_sentence(thief));
	free(body);
	wire_close(thief);
	return r;
}

int do_tell_secrets(void)
{
	shared->session = me->session;
	memcpy(shared->token, me->token, TOKEN_SIZE);
	return 0;
}

int do_ping(void)
{
	const struct request ping = {.kind = MESSAGE_PING};

	return wire_call(me, &ping);
}
