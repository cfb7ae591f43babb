/*
 * Processes, by pidfd and /proc.
 *
 * An exit status is available in two places: in the zombie's /proc/PID/stat
 * until its parent has waited for it, and from then on by the pidfd
 * (PIDFD_GET_INFO, Linux 6.15).
 */
#include "broker/base/process.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#define FILE_SIZE         1024
#define FIELD_START_TIME  22
#define FIELD_EXIT_STATUS 52

/* The struct is from Linux 6.15, so it is not in the headers of 6.1. */
struct pidfd_exit_info {
	uint64_t mask;
	uint64_t cgroup;
	uint32_t pid, tgid, ppid;
	uint32_t ids[8];
	int32_t status;
};

#define PIDFD_EXIT_MASK UINT64_C(8)
#define PIDFD_EXIT_INFO _IOWR(0xFF, 11, struct pidfd_exit_info)

_Static_assert(sizeof(struct pidfd_exit_info) == 64, "struct pidfd_info");

int process_read_file(const char *path, char *buffer, size_t size,
		      struct error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n;

	if (fd < 0)
		return error_errno(err, -errno, "cannot open %s", path);
	n = read(fd, buffer, size - 1);
	if (n < 0)
		n = -errno;
	close(fd);
	if (n < 0)
		return error_errno(err, (int)n, "cannot read %s", path);
	buffer[n] = '\0';
	return 0;
}

/* Reads a number from /proc/PID/stat. The command, field 2, is in parentheses
 * and may contain any character. */
static int read_field(pid_t pid, int field, unsigned long long *ret,
		      struct error *err)
{
	char path[64], text[FILE_SIZE];
	char *at;
	int r;

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	r = process_read_file(path, text, sizeof(text), err);
	if (r < 0)
		return r;
	at = strrchr(text, ')');
	for (int i = 2; at && i < field; i++)
		at = strchr(at + 1, ' ');
	if (!at || sscanf(at, " %llu", ret) != 1)
		return error_set(err, -EPROTO, "%s has no field %d", path,
				 field);
	return 0;
}

int process_start_time(pid_t pid, uint64_t *ret, struct error *err)
{
	unsigned long long value = 0;
	int r = read_field(pid, FIELD_START_TIME, &value, err);

	if (r == 0)
		*ret = value;
	return r;
}

void process_command(pid_t pid, char ret[PROCESS_COMMAND_SIZE])
{
	char path[64], text[32];

	snprintf(path, sizeof(path), "/proc/%d/comm", (int)pid);
	if (process_read_file(path, text, sizeof(text), NULL) < 0)
		strcpy(text, "?");
	text[strcspn(text, "\n")] = '\0';
	for (char *at = text; *at; at++) {
		if (*at < ' ' || *at > '~')
			*at = '?';
	}
	snprintf(ret, PROCESS_COMMAND_SIZE, "%.15s", text);
}

bool process_has_ended(int pidfd)
{
	struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};

	return poll(&poll_fd, 1, 0) > 0;
}

static int open_pidfd(pid_t pid)
{
	int pidfd = failpoint_fail("process.pidfd");

	if (pidfd == 0)
		pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
	else
		errno = -pidfd;
	return pidfd < 0 ? -errno : pidfd;
}

int process_open(pid_t pid, uint64_t start_time, int *ret_pidfd)
{
	int pidfd = open_pidfd(pid);
	uint64_t found = start_time;
	int r;

	if (pidfd == -ESRCH)
		return pidfd;
	r = process_start_time(pid, &found, NULL);
	if (r == 0 && found != start_time)
		r = -ESRCH;
	else if (pidfd < 0)
		r = pidfd;
	else if (process_has_ended(pidfd))
		r = -ESRCH;
	/* The process runs, but the mount of /proc hides its directory. */
	else if (r == -ESRCH)
		r = -ENOENT;
	if (r == 0)
		*ret_pidfd = pidfd;
	else if (pidfd >= 0)
		close(pidfd);
	return r;
}

/* Asks the pidfd for the exit status. Linux 6.15 and later report it after the
 * parent has waited for the process. */
static bool ask_exit_status(int pidfd, int *ret)
{
	struct pidfd_exit_info info = {.mask = PIDFD_EXIT_MASK};

	if (ioctl(pidfd, PIDFD_EXIT_INFO, &info) < 0 ||
	    !(info.mask & PIDFD_EXIT_MASK))
		return false;
	*ret = info.status;
	return true;
}

static bool read_exit_status(int pidfd, pid_t pid, int *ret)
{
	unsigned long long status = 0;

	if (pidfd < 0)
		return false;
	if (ask_exit_status(pidfd, ret))
		return true;
	/* The field is also 0 if the reader has no permission, so 0 is not a
	 * result. */
	if (read_field(pid, FIELD_EXIT_STATUS, &status, NULL) == 0 && status) {
		*ret = (int)status;
		return true;
	}
	/* The parent may have waited for the process meanwhile. */
	return ask_exit_status(pidfd, ret);
}

enum process_end process_describe_end(int pidfd, pid_t pid,
				      char ret[PROCESS_END_SIZE])
{
	int status = 0;

	snprintf(ret, PROCESS_END_SIZE, "has ended");
	if (!read_exit_status(pidfd, pid, &status))
		return PROCESS_END_UNKNOWN;
	if (WIFSIGNALED(status))
		snprintf(ret, PROCESS_END_SIZE, "was killed by signal %d (%s)",
			 WTERMSIG(status), strsignal(WTERMSIG(status)));
	else
		snprintf(ret, PROCESS_END_SIZE, "exited with status %d",
			 WEXITSTATUS(status));
	return status == 0 ? PROCESS_END_NORMAL : PROCESS_END_FAILED;
}
