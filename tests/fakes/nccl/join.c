#include "tests/fakes/nccl/join.h"
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RETRY_MS 2

struct hello {
	uint32_t rank, n_ranks;
	int gpu;
	char host[64];
};

struct verdict {
	ncclResult_t result;
	char sentence[200];
};

/* Returns when a process started, in ticks, or 0 if there is none. */
static uint64_t start_of(int32_t pid)
{
	unsigned long long start = 0;
	char path[64], line[1024], *end;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/%d/stat", pid);
	file = fopen(path, "re");
	if (!file)
		return 0;
	/* It is the 20th field after the name, which may contain blanks. */
	if (fgets(line, sizeof(line), file)) {
		end = strrchr(line, ')');
		for (int i = 0; end && i < 20; i++)
			end = strchr(end + 1, ' ');
		if (end)
			start = strtoull(end, NULL, 10);
	}
	fclose(file);
	return start;
}

static struct join_id id_of_this_process(void)
{
	return (struct join_id){
		.magic = JOIN_MAGIC,
		.maker = getpid(),
		.maker_start = start_of(getpid()),
	};
}

void join_id_make(ncclUniqueId *ret)
{
	struct join_id id = id_of_this_process();
	uint64_t word[2];

	_Static_assert(sizeof(id) <= sizeof(*ret), "it fits");
	if (getrandom(word, sizeof(word), 0) != sizeof(word))
		abort();
	snprintf(id.name, sizeof(id.name), "fake-nccl-%016llx%016llx",
		 (unsigned long long)word[0], (unsigned long long)word[1]);
	memset(ret, 0, sizeof(*ret));
	memcpy(ret, &id, sizeof(id));
}

void join_id_derive(const struct join_id *id, uint64_t split, int color,
		    struct join_id *ret)
{
	*ret = id_of_this_process();
	snprintf(ret->name, sizeof(ret->name), "%.43s.%u.%d", id->name,
		 (unsigned int)split, color);
}

/* NCCL_HOSTID distinguishes nodes, as in the real library. */
static void name_host(char *ret, size_t size)
{
	const char *id = getenv("NCCL_HOSTID");

	if (id)
		snprintf(ret, size, "%s", id);
	else if (gethostname(ret, size) < 0)
		*ret = 0;
}

ncclResult_t join_init(struct join *join)
{
	join->board = BOARD_NULL;
	atomic_init(&join->is_stopped, false);
	for (int i = 0; i < BOARD_MAX_RANKS; i++)
		join->sockets[i] = -1;
	name_host(join->host, sizeof(join->host));
	join->stop_fd = eventfd(0, EFD_CLOEXEC);
	if (join->stop_fd < 0)
		return api_fail(ncclSystemError, "eventfd: %s",
				strerror(errno));
	return ncclSuccess;
}

static void drop_sockets(struct join *join)
{
	for (int i = 0; i < BOARD_MAX_RANKS; i++)
		if (join->sockets[i] >= 0) {
			close(join->sockets[i]);
			join->sockets[i] = -1;
		}
}

void join_deinit(struct join *join)
{
	drop_sockets(join);
	board_close(&join->board);
	if (join->stop_fd >= 0)
		close(join->stop_fd);
	join->stop_fd = -1;
}

void join_stop(struct join *join)
{
	const uint64_t one = 1;

	atomic_store(&join->is_stopped, true);
	if (write(join->stop_fd, &one, sizeof(one)) != sizeof(one))
		abort();
}

bool join_is_stopped(const void *data)
{
	const struct join *join = data;

	return atomic_load(&join->is_stopped);
}

/* --- messages ------------------------------------------------------------ */

static struct sockaddr_un address_of(const struct join *join, socklen_t *ret)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	size_t n = strnlen(join->id.name, JOIN_NAME_SIZE);

	memcpy(address.sun_path + 1, join->id.name, n);
	*ret = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n);
	return address;
}

/* `fd` is -1 if there is none. */
static bool send_message(int sock, const void *data, size_t size, int fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control = {.header.cmsg_len = CMSG_LEN(sizeof(int)),
		     .header.cmsg_level = SOL_SOCKET,
		     .header.cmsg_type = SCM_RIGHTS};
	struct iovec iov = {(void *)data, size};
	struct msghdr message = {.msg_iov = &iov, .msg_iovlen = 1};

	if (fd >= 0) {
		memcpy(CMSG_DATA(&control.header), &fd, sizeof(fd));
		message.msg_control = &control;
		message.msg_controllen = sizeof(control);
	}
	return sendmsg(sock, &message, MSG_NOSIGNAL) == (ssize_t)size;
}

static bool receive_message(int sock, void *data, size_t size, int *ret_fd)
{
	union {
		struct cmsghdr header;
		char space[CMSG_SPACE(sizeof(int))];
	} control;
	struct iovec iov = {data, size};
	struct msghdr message = {.msg_iov = &iov,
				 .msg_iovlen = 1,
				 .msg_control = &control,
				 .msg_controllen = sizeof(control)};
	ssize_t n = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);

	*ret_fd = -1;
	if (n > 0 && CMSG_FIRSTHDR(&message))
		memcpy(ret_fd, CMSG_DATA(&control.header), sizeof(*ret_fd));
	return n == (ssize_t)size;
}

static struct hello hello_of(const struct join *join)
{
	struct hello hello = {
		.rank = join->rank, .n_ranks = join->n_ranks, .gpu = join->gpu};

	memcpy(hello.host, join->host, sizeof(hello.host));
	return hello;
}

/* Returns true if it is readable, false if stopped. */
static bool wait_for(struct join *join, int fd)
{
	struct pollfd fds[2] = {{join->stop_fd, POLLIN, 0}, {fd, POLLIN, 0}};

	while (poll(fds, 2, -1) < 0)
		;
	return !fds[0].revents;
}

/* --- rank 0 -------------------------------------------------------------- */

static ncclResult_t check_hello(const struct hello *hellos,
				const struct hello *hello, uint32_t n_ranks)
{
	if (hello->n_ranks != n_ranks)
		return api_fail(ncclInvalidArgument,
				"rank %u speaks of %u ranks, rank 0 of %u",
				hello->rank, hello->n_ranks, n_ranks);
	if (hello->rank >= n_ranks || hellos[hello->rank].n_ranks > 0)
		return api_fail(ncclInvalidUsage, "two ranks are rank %u",
				hello->rank);
	for (uint32_t i = 0; i < n_ranks; i++)
		if (hellos[i].n_ranks > 0 && hellos[i].gpu == hello->gpu &&
		    strcmp(hellos[i].host, hello->host) == 0)
			return api_fail(ncclInvalidUsage,
					"Duplicate GPU detected : rank %u and "
					"rank %u both on CUDA device %d",
					hello->rank, i, hello->gpu);
	return ncclSuccess;
}

/* Accepts a connection if it is from a rank. */
static ncclResult_t take_in(struct join *join, int listener,
			    struct hello *hellos, uint32_t *n_here)
{
	const struct timeval patience = {.tv_sec = 5};
	int sock = accept4(listener, NULL, NULL, SOCK_CLOEXEC), fd;
	struct hello hello;
	ncclResult_t result;

	if (sock < 0)
		return api_fail(ncclSystemError, "accept: %s", strerror(errno));
	setsockopt(sock, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience));
	/* The rank may have died between connecting and sending. */
	if (!receive_message(sock, &hello, sizeof(hello), &fd)) {
		close(sock);
		return ncclSuccess;
	}
	result = check_hello(hellos, &hello, join->n_ranks);
	if (result != ncclSuccess) {
		struct verdict verdict = {.result = result};

		snprintf(verdict.sentence, sizeof(verdict.sentence), "%s",
			 ncclGetLastError(NULL));
		send_message(sock, &verdict, sizeof(verdict), -1);
		close(sock);
		return result;
	}
	join->sockets[hello.rank] = sock;
	hellos[hello.rank] = hello;
	(*n_here)++;
	return ncclSuccess;
}

/* A rank that leaves before all have come is never replaced. */
static ncclResult_t check_gone(const struct join *join,
			       const struct pollfd *fds)
{
	for (uint32_t i = 1; i < join->n_ranks; i++)
		if (fds[i].revents)
			return api_fail(ncclRemoteError,
					"rank %u has gone before all had come",
					i);
	return ncclSuccess;
}

static ncclResult_t collect(struct join *join, int listener)
{
	struct hello hellos[BOARD_MAX_RANKS] = {hello_of(join)};
	struct pollfd fds[BOARD_MAX_RANKS + 1];
	uint32_t n_here = 1;
	ncclResult_t result = ncclSuccess;

	while (result == ncclSuccess && n_here < join->n_ranks) {
		for (uint32_t i = 1; i < join->n_ranks; i++)
			fds[i] = (struct pollfd){join->sockets[i], POLLIN, 0};
		fds[0] = (struct pollfd){listener, POLLIN, 0};
		fds[join->n_ranks] = (struct pollfd){join->stop_fd, POLLIN, 0};
		if (poll(fds, join->n_ranks + 1, -1) < 0)
			continue;
		if (fds[join->n_ranks].revents)
			return ncclInProgress;
		result = check_gone(join, fds);
		if (result == ncclSuccess && fds[0].revents)
			result = take_in(join, listener, hellos, &n_here);
	}
	return result;
}

static void tell_all(struct join *join, ncclResult_t result)
{
	struct verdict verdict = {.result = result};

	if (result != ncclSuccess)
		snprintf(verdict.sentence, sizeof(verdict.sentence), "%s",
			 ncclGetLastError(NULL));
	for (uint32_t i = 1; i < join->n_ranks; i++)
		if (join->sockets[i] >= 0)
			send_message(join->sockets[i], &verdict,
				     sizeof(verdict), join->board.fd);
}

static ncclResult_t host(struct join *join)
{
	socklen_t size;
	struct sockaddr_un address = address_of(join, &size);
	ncclResult_t result;
	int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

	if (listener < 0 ||
	    bind(listener, (struct sockaddr *)&address, size) < 0 ||
	    listen(listener, BOARD_MAX_RANKS) < 0)
		result = errno == EADDRINUSE
				 ? api_fail(ncclInvalidUsage,
					    "two ranks are rank 0")
				 : api_fail(ncclSystemError, "listen: %s",
					    strerror(errno));
	else
		result = collect(join, listener);
	if (result == ncclSuccess &&
	    board_create(&join->board, join->n_ranks) < 0)
		result = api_fail(ncclSystemError, "make the board: %s",
				  strerror(errno));
	if (result != ncclInProgress)
		tell_all(join, result);
	if (listener >= 0)
		close(listener);
	return result;
}

/* --- the others ---------------------------------------------------------- */

/* Repeats until rank 0 listens. */
static ncclResult_t find_host(struct join *join, int *ret)
{
	socklen_t size;
	struct sockaddr_un address = address_of(join, &size);
	struct pollfd stop = {join->stop_fd, POLLIN, 0};

	while (poll(&stop, 1, RETRY_MS) <= 0) {
		int sock = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

		if (sock < 0)
			return api_fail(ncclSystemError, "socket: %s",
					strerror(errno));
		if (connect(sock, (struct sockaddr *)&address, size) == 0) {
			*ret = sock;
			return ncclSuccess;
		}
		close(sock);
	}
	return ncclInProgress;
}

static ncclResult_t visit(struct join *join)
{
	struct hello hello = hello_of(join);
	ncclResult_t result = find_host(join, &join->sockets[0]);
	struct verdict verdict;
	int fd;

	if (result != ncclSuccess)
		return result;
	if (!send_message(join->sockets[0], &hello, sizeof(hello), -1))
		return api_fail(ncclRemoteError, "rank 0 has gone");
	result = api_fault("Meet");
	if (result != ncclSuccess)
		return result;
	if (!wait_for(join, join->sockets[0]))
		return ncclInProgress;
	if (!receive_message(join->sockets[0], &verdict, sizeof(verdict), &fd))
		return api_fail(ncclRemoteError, "rank 0 has gone");
	if (verdict.result != ncclSuccess)
		return api_fail(verdict.result, "%s", verdict.sentence);
	if (board_open(&join->board, join->n_ranks, fd) < 0)
		return api_fail(ncclSystemError, "map the board: %s",
				strerror(errno));
	return ncclSuccess;
}

ncclResult_t join_meet(struct join *join)
{
	if (start_of(join->id.maker) != join->id.maker_start)
		return api_fail(ncclSystemError,
				"the process that made the unique id has "
				"ended; it must live until all ranks have "
				"come");
	return join->rank == 0 ? host(join) : visit(join);
}

void join_watch(struct join *join)
{
	struct pollfd fds[BOARD_MAX_RANKS + 1];

	for (;;) {
		for (uint32_t i = 0; i < join->n_ranks; i++)
			fds[i] = (struct pollfd){join->sockets[i], POLLIN, 0};
		fds[join->n_ranks] = (struct pollfd){join->stop_fd, POLLIN, 0};
		if (poll(fds, join->n_ranks + 1, -1) < 0)
			continue;
		for (uint32_t i = 0; i < join->n_ranks; i++)
			if (fds[i].revents) {
				board_go(&join->board, i);
				close(join->sockets[i]);
				join->sockets[i] = -1;
			}
		if (fds[join->n_ranks].revents)
			return;
	}
}
