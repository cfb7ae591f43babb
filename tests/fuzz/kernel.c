#include "tests/fuzz/kernel.h"
#include "broker/base/closer.h"
#include "broker/base/fdstore.h"
#include "broker/base/process.h"
#include "proto/error.h"
#include "proto/frame.h"
#include "tests/fuzz/process.h"
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#define MAX_FILES 256
#define MAX_FDS   4096

#ifndef SO_PEERPIDFD
#define SO_PEERPIDFD 77
#endif

static uint64_t ahead_ms;
static int put_result;
/* The process at the other end, which may have exited meanwhile, indexed by the
 * broker's socket. */
static struct owner {
	uint32_t pid, uid; /* 0: none */
	int life_fd;       /* owned */
} owners[MAX_FDS];

static struct kept {
	char name[FDSTORE_NAME_SIZE];
	int fd; /* owned */
} kept[MAX_FILES];
static uint32_t n_kept;

/* --- what the broker asks of the kernel ----------------------------------- */

int __real_getsockopt(int fd, int level, int name, void *value,
		      socklen_t *size);
int __wrap_getsockopt(int fd, int level, int name, void *value,
		      socklen_t *size);
int __real_frame_take(int sock_fd, uint8_t *buffer, struct frame *ret,
		      struct frame_refused *ret_refused,
		      struct frame_sender *sender, struct error *err);
int __wrap_frame_take(int sock_fd, uint8_t *buffer, struct frame *ret,
		      struct frame_refused *ret_refused,
		      struct frame_sender *sender, struct error *err);
int __wrap_process_start_time(pid_t pid, uint64_t *ret, struct error *err);
int __wrap_process_open(pid_t pid, uint64_t start_time, int *ret_pidfd);
int __real_clock_gettime(clockid_t clock, struct timespec *ret);
int __wrap_clock_gettime(clockid_t clock, struct timespec *ret);
int __wrap_fdstore_put(struct fdstore *store, int fd, const char *name,
		       struct error *err);
void __wrap_fdstore_remove(struct fdstore *store, const char *name);
void __wrap_fdstore_notify_now(struct fdstore *store, const char *state);

void __wrap_closer_put(struct closer *closer, uint32_t uid, int fd);
void __wrap_closer_put_connection(struct closer *closer, uint32_t uid, int fd);
void __wrap_closer_put_frame(struct closer *closer, uint32_t uid,
			     struct frame *frame);

void kernel_set_ahead(uint64_t ms)
{
	ahead_ms = ms;
}

static int copy_fd(int fd)
{
	int copy = fcntl(fd, F_DUPFD_CLOEXEC, 3);

	ENSURE(copy >= 0);
	return copy;
}

static void forget_owner(int sock_fd)
{
	if (owners[sock_fd].pid)
		close(owners[sock_fd].life_fd);
	owners[sock_fd].pid = 0;
}

void kernel_set_owner(int sock_fd, const struct process *process)
{
	ENSURE(sock_fd < MAX_FDS);
	forget_owner(sock_fd);
	owners[sock_fd] = (struct owner){process->pid, process->uid,
					 copy_fd(process->life_fd)};
}

int __wrap_getsockopt(int fd, int level, int name, void *value, socklen_t *size)
{
	const struct owner *owner = &owners[fd];

	if (level == SOL_SOCKET && name == SO_PEERCRED && owner->pid) {
		*(struct ucred *)value = (struct ucred){(pid_t)owner->pid,
							owner->uid, owner->uid};
		return 0;
	}
	if (level == SOL_SOCKET && name == SO_PEERPIDFD && owner->pid) {
		*(int *)value = copy_fd(owner->life_fd);
		return 0;
	}
	return __real_getsockopt(fd, level, name, value, size);
}

int __wrap_frame_take(int sock_fd, uint8_t *buffer, struct frame *ret,
		      struct frame_refused *ret_refused,
		      struct frame_sender *sender, struct error *err)
{
	int r = __real_frame_take(sock_fd, buffer, ret, ret_refused, sender,
				  err);

	if (owners[sock_fd].pid)
		sender->pid = (pid_t)owners[sock_fd].pid;
	return r;
}

int __wrap_process_start_time(pid_t pid, uint64_t *ret, struct error *err)
{
	(void)err;
	*ret = (uint64_t)pid;
	return 0;
}

int __wrap_process_open(pid_t pid, uint64_t start_time, int *ret_pidfd)
{
	const struct process *process = process_find((uint32_t)pid);

	if (!process || start_time != (uint64_t)pid)
		return -ESRCH;
	*ret_pidfd = copy_fd(process->life_fd);
	return 0;
}

int __wrap_clock_gettime(clockid_t clock, struct timespec *ret)
{
	int r = __real_clock_gettime(clock, ret);

	if (clock == CLOCK_BOOTTIME) {
		ret->tv_sec += (time_t)(ahead_ms / 1000);
		ret->tv_nsec += (long)(ahead_ms % 1000) * 1000000;
	}
	return r;
}

/* Nothing here is slow to close, and a thread for each input would be slow. */
void __wrap_closer_put(struct closer *closer, uint32_t uid, int fd)
{
	(void)closer;
	(void)uid;
	close(fd);
}

void __wrap_closer_put_connection(struct closer *closer, uint32_t uid, int fd)
{
	(void)shutdown(fd, SHUT_RDWR);
	forget_owner(fd);
	__wrap_closer_put(closer, uid, fd);
}

void __wrap_closer_put_frame(struct closer *closer, uint32_t uid,
			     struct frame *frame)
{
	(void)closer;
	(void)uid;
	frame_close_fds(frame);
}

/* --- the keeper ----------------------------------------------------------- */

int __wrap_fdstore_put(struct fdstore *store, int fd, const char *name,
		       struct error *err)
{
	int r = put_result;

	(void)store;
	put_result = 0;
	if (r == -EAGAIN)
		return FDSTORE_WAIT;
	if (r < 0 || n_kept == MAX_FILES)
		return error_set(err, -ENFILE, "the keeper is full");
	snprintf(kept[n_kept].name, FDSTORE_NAME_SIZE, "%s", name);
	kept[n_kept++].fd = copy_fd(fd);
	return FDSTORE_OK;
}

void __wrap_fdstore_remove(struct fdstore *store, const char *name)
{
	(void)store;
	for (uint32_t i = 0; i < n_kept; i++) {
		if (strcmp(kept[i].name, name) != 0)
			continue;
		close(kept[i].fd);
		kept[i--] = kept[--n_kept];
	}
}

void __wrap_fdstore_notify_now(struct fdstore *store, const char *state)
{
	(void)store;
	(void)state;
}

void keeper_pass_on(struct fdstore *ret)
{
	*ret = FDSTORE_NULL;
	ret->is_kept = true;
	ret->inherited = calloc(n_kept + 1, sizeof(*ret->inherited));
	ENSURE(ret->inherited);
	for (uint32_t i = 0; i < n_kept; i++) {
		struct fdstore_entry *entry = &ret->inherited[i];

		memcpy(entry->name, kept[i].name, sizeof(entry->name));
		entry->fd = copy_fd(kept[i].fd);
	}
	ret->n_inherited = n_kept;
}

void keeper_refuse(int code)
{
	put_result = code;
}

void keeper_clear(void)
{
	put_result = 0;
	while (n_kept > 0)
		close(kept[--n_kept].fd);
}
