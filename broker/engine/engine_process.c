/*
 * The process of fsdp-worker.
 *
 * Its pidfd is in the fd store before it gets its first message, so that the
 * next broker can end a worker that still writes, whatever killed this broker.
 * The process has a process group of its own, so that a signal from a terminal
 * to the broker does not end the worker first.
 */
#include "broker/engine/engine_impl.h"
#include "broker/tensor/store.h"
#include "proto/failpoint.h"
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#define KILL_MS 10000

/* --- starting ------------------------------------------------------------ */

int engine_find_program(char ret[PATH_MAX], struct error *err)
{
	const char *path = getenv("FSDP_WORKER");
	char self[PATH_MAX];
	ssize_t n;

	if (path && *path) {
		snprintf(ret, PATH_MAX, "%s", path);
	} else {
		n = readlink("/proc/self/exe", self, sizeof(self) - 1);
		if (n < 0)
			return error_errno(err, -errno,
					   "cannot find this program");
		self[n] = '\0';
		*strrchr(self, '/') = '\0';
		if (snprintf(ret, PATH_MAX, "%s/fsdp-worker", self) >= PATH_MAX)
			ret[0] = '\0';
	}
	if (access(ret, X_OK) == 0)
		return 0;
	return error_set(err, -ENOENT,
			 "collectives on host memory need the program %s: %s; "
			 "install it there, or set FSDP_WORKER for the broker",
			 ret, strerror(errno));
}

/* Let the worker inherit only its end of the link. */
static int set_files(posix_spawn_file_actions_t *files, int link_fd)
{
	int r;

	r = posix_spawn_file_actions_addopen(files, 0, "/dev/null", O_RDONLY,
					     0);
	if (r == 0)
		r = posix_spawn_file_actions_adddup2(files, link_fd, WORKER_FD);
	if (r == 0)
		r = posix_spawn_file_actions_addclosefrom_np(files,
							     WORKER_FD + 1);
	return r;
}

static int set_attributes(posix_spawnattr_t *attributes)
{
	sigset_t none, defaults;
	int r;

	sigemptyset(&none);
	sigemptyset(&defaults);
	sigaddset(&defaults, SIGPIPE);
	r = posix_spawnattr_setflags(
		attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK |
				    POSIX_SPAWN_SETSIGDEF);
	if (r == 0)
		r = posix_spawnattr_setsigmask(attributes, &none);
	if (r == 0)
		r = posix_spawnattr_setsigdefault(attributes, &defaults);
	return r;
}

/* Returns 0 or a positive errno, like posix_spawn(). */
static int spawn(const struct engine *engine, const char *path, int link_fd,
		 pid_t *ret_pid)
{
	char *option = engine->has_no_sandbox ? (char *)"--no-sandbox" : NULL;
	char *const arguments[] = {(char *)"fsdp-worker", option, NULL};
	posix_spawn_file_actions_t files;
	posix_spawnattr_t attributes;
	int r;

	r = posix_spawn_file_actions_init(&files);
	if (r != 0)
		return r;
	r = posix_spawnattr_init(&attributes);
	if (r != 0)
		goto destroy_files;
	r = set_files(&files, link_fd);
	if (r == 0)
		r = set_attributes(&attributes);
	if (r == 0)
		r = posix_spawn(ret_pid, path, &files, &attributes, arguments,
				environ);
	posix_spawnattr_destroy(&attributes);
destroy_files:
	posix_spawn_file_actions_destroy(&files);
	return r;
}

/*
 * Start the worker without the protection from the kernel's OOM killer that the
 * unit gives the broker. The worker inherits the broker's value, and can be
 * started again. It could not write its own value, since the sandbox does not
 * allow it to open the file.
 */
static int spawn_unprotected(const struct engine *engine, const char *path,
			     int link_fd, pid_t *ret_pid)
{
	char text[16] = "";
	ssize_t n = pread(engine->oom_fd, text, sizeof(text) - 1, 0);
	bool is_protected = n > 0 && text[0] == '-' &&
			    pwrite(engine->oom_fd, "0", 1, 0) == 1;
	int r = spawn(engine, path, link_fd, ret_pid);

	if (is_protected && pwrite(engine->oom_fd, text, (size_t)n, 0) < 0)
		log_line(LOG_LEVEL_WARNING,
			 "cannot set oom_score_adj back to %.*s: %s; the "
			 "kernel may kill the broker when memory is short",
			 (int)strcspn(text, "\n"), text,
			 strerrordesc_np(errno));
	return r;
}

/* Restore the limit on descriptors, which is raised for the broker only. */
static void restore_limit(const struct engine_worker *worker)
{
	const struct rlimit *limit = worker->engine->first_limit;

	if (limit->rlim_max)
		(void)prlimit(worker->pid, RLIMIT_NOFILE, limit, NULL);
}

static int start_process(struct engine_worker *worker, struct error *err)
{
	char path[PATH_MAX];
	int fds[2];
	int r;

	r = engine_find_program(path, err);
	if (r < 0)
		return r;
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, fds) < 0)
		return error_errno(err, -errno,
				   "cannot make a link to fsdp-worker");
	worker->link_fd = fds[0];
	r = failpoint_fail("engine.spawn");
	if (r == 0)
		r = -spawn_unprotected(worker->engine, path, fds[1],
				       &worker->pid);
	close(fds[1]);
	if (r < 0) {
		worker->pid = 0;
		return error_errno(err, r, "cannot start %s", path);
	}
	restore_limit(worker);
	worker->pidfd = pidfd_open(worker->pid, 0);
	if (worker->pidfd < 0)
		return error_errno(err, -errno, "cannot watch %s (pid %d)",
				   path, (int)worker->pid);
	return 0;
}

static int watch(struct engine_worker *worker, int fd, uv_poll_t *poll,
		 uv_poll_cb on_event, struct error *err)
{
	int r;

	r = uv_poll_init(&worker->engine->store->base->loop.uv, poll, fd);
	if (r == 0) {
		poll->data = worker;
		worker->n_handles++;
		r = uv_poll_start(poll, UV_READABLE, on_event);
	}
	if (r < 0)
		return error_set(err, r,
				 "cannot watch fsdp-worker (pid %d): %s",
				 (int)worker->pid, uv_strerror(r));
	return 0;
}

static int set_up(struct engine_worker *worker, uv_poll_cb on_link,
		  uv_poll_cb on_pidfd, struct error *err)
{
	int r;

	r = start_process(worker, err);
	if (r == 0)
		r = fdstore_put(&worker->engine->store->base->fdstore,
				worker->pidfd, WORKER_NAME, err);
	worker->is_stored = r == FDSTORE_OK;
	if (r == FDSTORE_WAIT)
		r = error_set(
			err, -EBUSY,
			"cannot start fsdp-worker: its pidfd cannot be sent "
			"yet to the process that keeps the broker's "
			"descriptors (systemd or the supervisor); try again");
	if (r == 0)
		r = watch(worker, worker->link_fd, &worker->link_poll, on_link,
			  err);
	if (r == 0)
		r = watch(worker, worker->pidfd, &worker->pidfd_poll, on_pidfd,
			  err);
	return r;
}

int worker_start(struct engine *engine, uv_poll_cb on_link, uv_poll_cb on_pidfd,
		 struct engine_worker **ret, struct error *err)
{
	struct engine_worker *worker = calloc(1, sizeof(*worker));
	int r;

	if (!worker)
		return error_nomem(err, "a worker");
	worker->engine = engine;
	worker->link_fd = worker->pidfd = -1;
	r = set_up(worker, on_link, on_pidfd, err);
	if (r < 0) {
		worker_stop(worker, 0);
		worker_free(worker);
		return r;
	}
	*ret = worker;
	return 0;
}

/* --- watching ------------------------------------------------------------ */

void worker_watch_link(struct engine_worker *worker, int events,
		       uv_poll_cb on_link)
{
	int r = uv_poll_start(&worker->link_poll, events, on_link);

	if (r < 0)
		worker_lose(worker, "it cannot be watched: %s", uv_strerror(r));
}

void worker_lose(struct engine_worker *worker, const char *format, ...)
{
	char text[256];
	va_list args;

	if (worker->is_lost)
		return;
	worker->is_lost = true;
	uv_poll_stop(&worker->link_poll);
	(void)pidfd_send_signal(worker->pidfd, SIGKILL, NULL, 0);
	if (!format)
		return;
	va_start(args, format);
	vsnprintf(text, sizeof(text), format, args);
	va_end(args);
	error_set(&worker->cause, -EIO,
		  "fsdp-worker (pid %d) was killed by the broker: %s",
		  (int)worker->pid, text);
}

/* --- ending -------------------------------------------------------------- */

/* Wait until the process of this pidfd has exited, whether it is a child or
 * not. Returns false if it has not within the time. */
static bool wait_gone(int pidfd, int timeout_ms)
{
	struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};
	int n;

	do
		n = poll(&poll_fd, 1, timeout_ms);
	while (n < 0 && errno == EINTR);
	return n > 0;
}

static void describe_end(pid_t pid, int status, struct error *ret)
{
	if (WIFSIGNALED(status))
		error_set(ret, -EIO, "fsdp-worker (pid %d) was killed: %s",
			  (int)pid, strsignal(WTERMSIG(status)));
	else
		error_set(ret, -EIO,
			  "fsdp-worker (pid %d) ended with status %d", (int)pid,
			  WEXITSTATUS(status));
}

void worker_collect(struct engine_worker *worker, struct error *ret)
{
	int status = 0;

	while (waitpid(worker->pid, &status, 0) < 0 && errno == EINTR)
		;
	if (worker->is_stored)
		fdstore_remove(&worker->engine->store->base->fdstore,
			       WORKER_NAME);
	worker->is_stored = false;
	if (worker->cause.code < 0)
		*ret = worker->cause;
	else
		describe_end(worker->pid, status, ret);
	worker->pid = 0;
}

static void on_handle_closed(uv_handle_t *handle)
{
	struct engine_worker *worker = handle->data;

	if (--worker->n_handles == 0)
		free(worker);
}

/* Close a descriptor and its handle, which has no type if it was never
 * initialised. */
static void close_watched(int *fd, uv_poll_t *poll)
{
	if (*fd < 0)
		return;
	if (uv_handle_get_type((uv_handle_t *)poll) == UV_POLL)
		uv_close((uv_handle_t *)poll, on_handle_closed);
	close(*fd);
	*fd = -1;
}

void worker_stop(struct engine_worker *worker, int patience_ms)
{
	struct error how;

	if (!worker->pid)
		return;
	/* The worker stops when the link is closed. */
	close_watched(&worker->link_fd, &worker->link_poll);
	if (worker->pidfd < 0) {
		(void)kill(worker->pid, SIGKILL);
		worker_collect(worker, &how);
		return;
	}
	if (wait_gone(worker->pidfd, patience_ms)) {
		worker_collect(worker, &how);
		return;
	}
	(void)pidfd_send_signal(worker->pidfd, SIGKILL, NULL, 0);
	if (wait_gone(worker->pidfd, KILL_MS))
		worker_collect(worker, &how);
	else
		log_line(LOG_LEVEL_ERROR,
			 "fsdp-worker (pid %d) was killed, but has not ended "
			 "yet",
			 (int)worker->pid);
}

void worker_free(struct engine_worker *worker)
{
	bool has_handles = worker->n_handles > 0;

	close_watched(&worker->link_fd, &worker->link_poll);
	close_watched(&worker->pidfd, &worker->pidfd_poll);
	if (!has_handles)
		free(worker);
}

/* --- after a restart ----------------------------------------------------- */

/* Returns the pid for messages: -1 if the process has exited, 0 if it is not
 * visible. */
static int read_pid(int pidfd)
{
	char path[64], line[128];
	int pid = 0;
	FILE *file;

	snprintf(path, sizeof(path), "/proc/self/fdinfo/%d", pidfd);
	file = fopen(path, "re");
	while (file && fgets(line, sizeof(line), file)) {
		if (sscanf(line, "Pid: %d", &pid) == 1)
			break;
	}
	if (file)
		fclose(file);
	return pid;
}

static int end_earlier(int pidfd, struct error *err)
{
	int pid = read_pid(pidfd);

	if (pidfd_send_signal(pidfd, SIGKILL, NULL, 0) < 0) {
		/* The process has exited already, or the descriptor is not of a
		 * process. In both cases nothing writes. */
		if (errno == ESRCH || errno == EBADF)
			return 0;
		return error_errno(err, -errno,
				   "cannot end the fsdp-worker (pid %d) of the "
				   "earlier broker",
				   pid);
	}
	if (wait_gone(pidfd, KILL_MS))
		return 0;
	return error_set(
		err, -EBUSY,
		"the fsdp-worker (pid %d) of the earlier broker has not "
		"exited, and may write to memory that this broker would "
		"allocate again; end that process, then start fsdpd again",
		pid);
}

int engine_adopt(struct engine *engine, struct error *err)
{
	struct fdstore *store = &engine->store->base->fdstore;
	int pidfd = fdstore_take(store, WORKER_NAME);
	int r;

	if (pidfd < 0)
		return 0;
	r = end_earlier(pidfd, err);
	close(pidfd);
	if (r < 0)
		return r;
	failpoint("adopt.worker");
	fdstore_remove(store, WORKER_NAME);
	return 0;
}
