/*
 * Frames of a hostile process.
 *
 * libfsdp sends and receives by the functions of this file instead of libc's.
 * So the frames are those of a real client in any state, and a part of them is
 * spoilt.
 */
#include "proto/frame.h"
#include "tests/hostile/hostile.h"
#include "tests/lib/chaos.h"
#include <poll.h>
#include <pthread.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#define N_RECORDS 16
#define N_FDS     4
#define N_NUMBER  8 /* offset of the number in a frame */

struct record {
	size_t size;
	uint8_t bytes[FRAME_MAX_SIZE];
};

static struct {
	struct siege *siege; /* NULL: this process is not hostile */
	pthread_mutex_t lock;
	struct chance chance;
	uint32_t n;
	/* frames that were sent, of which the oldest is replaced */
	struct record records[N_RECORDS];
	uint32_t n_records;
} own = {.lock = PTHREAD_MUTEX_INITIALIZER};

void frames_spoil(struct siege *siege, uint64_t seed, uint32_t n)
{
	own.chance.state = seed;
	own.n = n;
	own.siege = siege;
}

/* --- changes ------------------------------------------------------------- */

static void change(struct chance *chance, struct record *record)
{
	uint8_t *bytes = record->bytes;
	uint32_t size = (uint32_t)record->size;
	bool has_body = size > FRAME_HEADER_SIZE;
	uint32_t at = has_body ? FRAME_HEADER_SIZE +
					 draw(chance, size - FRAME_HEADER_SIZE)
			       : 0;

	switch (draw(chance, 7)) {
	case 0: /* any bit */
		at = draw(chance, size);
		bytes[at] ^= (uint8_t)(1 << draw(chance, 8));
		break;
	case 1: /* a byte of the body */
		bytes[at] = (uint8_t)draw(chance, 256);
		break;
	case 2: /* the kind */
		bytes[4] = (uint8_t)draw(chance, 68);
		break;
	case 3: /* an earlier number */
		bytes[N_NUMBER] -= (uint8_t)draw(chance, 4);
		break;
	case 4: /* half a frame */
		record->size = draw(chance, size + 1);
		break;
	case 5: /* more than a frame */
		record->size = size + draw(chance, FRAME_MAX_SIZE - size);
		break;
	default: /* a piece of the body twice */
		memmove(bytes + at, bytes + (has_body ? FRAME_HEADER_SIZE : 0),
			size - at);
		break;
	}
}

/* --- sending ------------------------------------------------------------- */

static bool draws(uint32_t n)
{
	return n && draw(&own.chance, n) == 0;
}

/* Sends bytes with descriptors of any kind. The header tells how many there
 * are, or lies. */
static ssize_t send_odd(int sock_fd, struct chance *chance,
			struct record *record)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(N_FDS * sizeof(int))];
	} control = {.bytes = {0}};
	struct iovec iov = {record->bytes, record->size};
	struct msghdr msg = {.msg_iov = &iov, .msg_iovlen = 1};
	uint32_t n = draw(chance, N_FDS + 1), n_open = 0;
	int fds[N_FDS];
	ssize_t sent;

	while (n_open < n && (fds[n_open] = files_open_odd(chance)) >= 0)
		n_open++;
	if (n_open) {
		control.align = (struct cmsghdr){
			.cmsg_len = CMSG_LEN(n_open * sizeof(int)),
			.cmsg_level = SOL_SOCKET,
			.cmsg_type = SCM_RIGHTS,
		};
		memcpy(CMSG_DATA(&control.align), fds, n_open * sizeof(int));
		msg.msg_control = &control;
		msg.msg_controllen = CMSG_SPACE(n_open * sizeof(int));
	}
	if (draw(chance, 4))
		record->bytes[6] = (uint8_t)n_open;
	sent = syscall(SYS_sendmsg, sock_fd, &msg, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n_open > 0)
		close(fds[--n_open]);
	atomic_fetch_add(&own.siege->n_frames, 1);
	return sent;
}

static void keep(const struct msghdr *msg, struct record *ret)
{
	size_t n = 0;

	for (size_t i = 0; i < msg->msg_iovlen; i++) {
		if (!msg->msg_iov[i].iov_len)
			continue;
		memcpy(ret->bytes + n, msg->msg_iov[i].iov_base,
		       msg->msg_iov[i].iov_len);
		n += msg->msg_iov[i].iov_len;
	}
	ret->size = n;
}

/* The library believes that it has sent what it wanted to. */
ssize_t sendmsg(int sock_fd, const struct msghdr *msg, int flags)
{
	static struct record spoilt;
	struct record *record;
	ssize_t size, r;

	if (!own.siege)
		return syscall(SYS_sendmsg, sock_fd, msg, flags);
	pthread_mutex_lock(&own.lock);
	record = &own.records[own.n_records++ % N_RECORDS];
	keep(msg, record);
	size = (ssize_t)record->size;
	if (draws(own.n)) {
		spoilt = *record;
		change(&own.chance, &spoilt);
		r = send_odd(sock_fd, &own.chance, &spoilt) < 0 ? -1 : size;
	} else {
		r = syscall(SYS_sendmsg, sock_fd, msg, flags);
	}
	pthread_mutex_unlock(&own.lock);
	return r;
}

/* --- receiving ----------------------------------------------------------- */

static void note_files(struct msghdr *msg)
{
	struct cmsghdr *cmsg = CMSG_FIRSTHDR(msg);

	for (; cmsg; cmsg = CMSG_NXTHDR(msg, cmsg)) {
		size_t n = (cmsg->cmsg_len - CMSG_LEN(0)) / sizeof(int);
		int fds[256];

		if (cmsg->cmsg_level != SOL_SOCKET ||
		    cmsg->cmsg_type != SCM_RIGHTS || n > 256)
			continue;
		memcpy(fds, CMSG_DATA(cmsg), n * sizeof(int));
		for (size_t i = 0; i < n; i++)
			files_note(fds[i]);
	}
}

ssize_t recvmsg(int sock_fd, struct msghdr *msg, int flags)
{
	ssize_t n = syscall(SYS_recvmsg, sock_fd, msg, flags);

	if (own.siege && n > 0)
		note_files(msg);
	return n;
}

/* --- speaking by itself -------------------------------------------------- */

static int connect_raw(void)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK,
			0);

	strncpy(address.sun_path, own.siege->socket,
		sizeof(address.sun_path) - 1);
	if (connect(fd, (struct sockaddr *)&address, sizeof(address)) == 0)
		return fd;
	close(fd);
	return -1;
}

/* Reads replies, or leaves them. */
static void read_some(int fd, struct chance *chance)
{
	struct pollfd pollfd = {.fd = fd, .events = POLLIN};
	static uint8_t bytes[FRAME_MAX_SIZE];
	char control[1024];
	struct iovec iov = {bytes, sizeof(bytes)};
	struct msghdr msg = {.msg_iov = &iov,
			     .msg_iovlen = 1,
			     .msg_control = control,
			     .msg_controllen = sizeof(control)};

	if (draw(chance, 2) && poll(&pollfd, 1, (int)draw(chance, 5)) == 1)
		(void)syscall(SYS_recvmsg, fd, &msg,
			      MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
}

void frames_speak(struct siege *siege, struct chance *chance)
{
	static struct record record;
	uint32_t n = 1 + draw(chance, 40);
	int fd = connect_raw();

	(void)siege;
	for (uint32_t i = 0; fd >= 0 && i < n; i++) {
		pthread_mutex_lock(&own.lock);
		record = own.records[draw(chance, N_RECORDS)];
		pthread_mutex_unlock(&own.lock);
		if (!record.size)
			continue;
		if (draw(chance, 2))
			change(chance, &record);
		(void)send_odd(fd, chance, &record);
		read_some(fd, chance);
	}
	if (fd >= 0)
		close(fd);
}
