#include "tests/fuzz/worker.h"
#include "collective/job.h"
#include "tests/fuzz/input.h"
#include "tests/fuzz/kernel.h"
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/pidfd.h>
#include <sys/socket.h>
#include <unistd.h>

/* No process has this number. */
#define WORKER_PID  4999999
#define MAX_NUMBERS 64

struct engine_worker;

static int pair[2] = {-1, -1}; /* the last socket pair, borrowed */
static int link_fd = -1;       /* the worker's end; -1: it does not run */
static int life_fd = -1;       /* an eventfd; readable: it has exited */
static uint64_t numbers[MAX_NUMBERS];
static uint32_t n_numbers; /* jobs that are not done */

int __real_socketpair(int domain, int type, int protocol, int fds[2]);
int __wrap_socketpair(int domain, int type, int protocol, int fds[2]);
int __wrap_posix_spawn(pid_t *ret, const char *path,
		       const posix_spawn_file_actions_t *files,
		       const posix_spawnattr_t *attributes,
		       char *const arguments[], char *const environment[]);
int __wrap_pidfd_open(pid_t pid, unsigned int flags);
int __wrap_pidfd_send_signal(int pidfd, int number, siginfo_t *info,
			     unsigned int flags);
void __real_worker_stop(struct engine_worker *worker, int patience_ms);
void __wrap_worker_stop(struct engine_worker *worker, int patience_ms);

/* --- life ----------------------------------------------------------------- */

static void die(void)
{
	if (link_fd < 0)
		return;
	close(link_fd);
	link_fd = -1;
	ENSURE(eventfd_write(life_fd, 1) == 0);
}

void worker_clear(void)
{
	die();
	if (life_fd >= 0)
		close(life_fd);
	life_fd = -1;
}

int __wrap_socketpair(int domain, int type, int protocol, int fds[2])
{
	int r = __real_socketpair(domain, type, protocol, fds);

	memcpy(pair, fds, sizeof(pair));
	return r;
}

int __wrap_posix_spawn(pid_t *ret, const char *path,
		       const posix_spawn_file_actions_t *files,
		       const posix_spawnattr_t *attributes,
		       char *const arguments[], char *const environment[])
{
	struct job_hello hello = {.kind = JOB_HELLO,
				  .protocol = JOB_PROTOCOL,
				  .n_threads = 1,
				  .version = FSDP_VERSION};

	(void)path;
	(void)files;
	(void)attributes;
	(void)arguments;
	(void)environment;
	worker_clear();
	n_numbers = 0;
	link_fd = fcntl(pair[1], F_DUPFD_CLOEXEC, 3);
	life_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
	ENSURE(link_fd >= 0 && life_fd >= 0);
	ENSURE(send(link_fd, &hello, sizeof(hello), MSG_DONTWAIT) > 0);
	*ret = WORKER_PID;
	return 0;
}

int __wrap_pidfd_open(pid_t pid, unsigned int flags)
{
	(void)flags;
	ENSURE(pid == WORKER_PID);
	return fcntl(life_fd, F_DUPFD_CLOEXEC, 3);
}

int __wrap_pidfd_send_signal(int pidfd, int number, siginfo_t *info,
			     unsigned int flags)
{
	(void)pidfd;
	(void)number;
	(void)info;
	(void)flags;
	die();
	errno = ESRCH;
	return -1;
}

/* It exits when the link is closed, so nothing waits for it. */
void __wrap_worker_stop(struct engine_worker *worker, int patience_ms)
{
	die();
	__real_worker_stop(worker, patience_ms);
}

/* --- jobs ----------------------------------------------------------------- */

/* Read the messages, and note the jobs, which have their number at the same
 * place. */
static void read_jobs(void)
{
	union {
		uint32_t kind;
		struct job job;
		uint8_t bytes[65536];
	} message;

	while (recv(link_fd, &message, sizeof(message), MSG_DONTWAIT) > 0) {
		if ((message.kind == JOB_GATHER ||
		     message.kind == JOB_REDUCE) &&
		    n_numbers < MAX_NUMBERS)
			numbers[n_numbers++] = message.job.number;
	}
}

static void finish(struct input *input, int32_t code)
{
	struct job_done done = {
		.kind = JOB_DONE, .code = code, .sentence = "no reason"};
	uint32_t i = n_numbers ? input_below(input, n_numbers) : 0;

	done.number = n_numbers ? numbers[i] : input_odd(input);
	if (n_numbers)
		memmove(&numbers[i], &numbers[i + 1],
			(--n_numbers - i) * sizeof(*numbers));
	(void)send(link_fd, &done, sizeof(done), MSG_DONTWAIT | MSG_NOSIGNAL);
}

void worker_act(struct input *input)
{
	uint64_t word;

	if (link_fd < 0)
		return;
	read_jobs();
	switch (input_below(input, 8)) {
	case 7:
		die();
		break;
	case 6:
		word = input_odd(input);
		(void)send(link_fd, &word, sizeof(word),
			   MSG_DONTWAIT | MSG_NOSIGNAL);
		break;
	case 5:
		finish(input, -EIO);
		break;
	default:
		finish(input, 0);
	}
}
