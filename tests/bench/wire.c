#include "wire.h"
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

struct wire wire;

ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
	ssize_t n = syscall(SYS_sendmsg, fd, message, flags);

	if (n > 0) {
		wire.n_sent++;
		wire.sent_size = (uint64_t)n;
	}
	return n;
}

static void count_fds(struct msghdr *message)
{
	struct cmsghdr *part;

	for (part = CMSG_FIRSTHDR(message); part;
	     part = CMSG_NXTHDR(message, part))
		if (part->cmsg_level == SOL_SOCKET &&
		    part->cmsg_type == SCM_RIGHTS)
			wire.n_fds +=
				(part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
}

ssize_t recvmsg(int fd, struct msghdr *message, int flags)
{
	ssize_t n = syscall(SYS_recvmsg, fd, message, flags);

	if (n > 0) {
		wire.n_received++;
		wire.received_size = (uint64_t)n;
		count_fds(message);
	}
	return n;
}

void *mmap(void *address, size_t size, int prot, int flags, int fd,
	   off_t offset)
{
	wire.n_mmaps++;
	return (void *)syscall(SYS_mmap, address, size, prot, flags, fd,
			       offset);
}
