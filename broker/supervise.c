/*
 * The supervisor: a loop over three descriptors (notifications, signals, the
 * child's pidfd), and the list of kept descriptors.
 *
 * The child is forked without an exec, and finds its descriptors where systemd
 * would have put them: from 3 on, counted by LISTEN_FDS. NOTIFY_SOCKET is a
 * path through the descriptor after those: /proc/self/fd/N is the inode of the
 * socket, whose directory is removed as soon as the socket is bound. So no file
 * remains, however the supervisor ends, and no other user can reach the socket.
 *
 * A notification may still be in the socket when its sender has died, so the
 * socket is drained before a death is handled.
 */
#include "broker/supervise.h"
#include "broker/base/fdstore.h"
#include "broker/broker.h"
#include "broker/session/descriptors.h"
#include "proto/error.h"
#include "proto/socket_path.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/pidfd.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <sysexits.h>
#include <unistd.h>

#define FIRST_FD            3 /* first descriptor of LISTEN_FDS */
#define MAX_KEPT            1024
#define MAX_FDS_PER_MESSAGE 253 /* SCM_MAX_FD */
#define MAX_DEATHS          5
#define DEATHS_WINDOW_MS    10000
#define FIRST_DELAY_MS      100
#define FORK_RETRY_MS       1000
/* The delay after a start for which memory or descriptors were short. */
#define SHORT_RETRY_MS 300

struct kept {
	int fd;
	char name[FDSTORE_NAME_SIZE];
};

struct supervisor {
	int listen_fd;   /* borrowed */
	int notify_fd;   /* receives notifications of the child */
	int notify_path; /* O_PATH of the same socket, for the child */
	int signal_fd;
	sigset_t old_mask;
	pid_t child; /* 0: not running */
	int child_fd;
	bool was_ready;    /* some broker has served clients */
	bool is_ending;    /* a signal requested the end */
	int passed_signal; /* the signal sent to the child; 0: none yet */
	int status;        /* exit status of the last child */
	/* The limits on descriptors at the start; all 0 if they were not
	 * raised. */
	struct rlimit first_limit;
	uint64_t restart_ms;
	uint64_t deaths[MAX_DEATHS]; /* ring of the times of the last deaths */
	uint32_t n_deaths;
	uint32_t n_kept;
	struct kept kept[MAX_KEPT];
};

/* --- kept descriptors ---------------------------------------------------- */

static bool is_same_file(int a, int b)
{
	struct stat one, other;

	return fstat(a, &one) == 0 && fstat(b, &other) == 0 &&
	       one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

/* Keep the descriptor, which is consumed. */
static void keep(struct supervisor *s, int fd, const char *name)
{
	uint32_t i;

	for (i = 0; i < s->n_kept; i++) {
		if (strcmp(s->kept[i].name, name) == 0 &&
		    is_same_file(s->kept[i].fd, fd))
			break;
	}
	if (i < s->n_kept || s->n_kept == MAX_KEPT) {
		close(fd);
		return;
	}
	s->kept[i].fd = fd;
	snprintf(s->kept[i].name, sizeof(s->kept[i].name), "%s", name);
	s->n_kept++;
}

static void forget(struct supervisor *s, const char *name)
{
	uint32_t i = 0;

	while (i < s->n_kept) {
		if (strcmp(s->kept[i].name, name) != 0) {
			i++;
			continue;
		}
		close(s->kept[i].fd);
		s->kept[i] = s->kept[--s->n_kept];
	}
}

/* --- notifications ------------------------------------------------------- */

struct notification {
	bool is_store, is_remove, is_ready;
	char name[FDSTORE_NAME_SIZE];
	int fds[MAX_FDS_PER_MESSAGE];
	size_t n_fds;
	pid_t sender;
};

/* Parse a notification. Other fields (STATUS, FDPOLL) are ignored, and so is a
 * name with a colon, which would be split in LISTEN_FDNAMES. */
static void parse(char *text, struct notification *ret)
{
	static const char name_key[] = "FDNAME=";
	char *rest = text, *line;

	while ((line = strsep(&rest, "\n"))) {
		const char *name = line + sizeof(name_key) - 1;

		if (strcmp(line, "FDSTORE=1") == 0)
			ret->is_store = true;
		else if (strcmp(line, "FDSTOREREMOVE=1") == 0)
			ret->is_remove = true;
		else if (strcmp(line, "READY=1") == 0)
			ret->is_ready = true;
		else if (strncmp(line, name_key, sizeof(name_key) - 1) == 0 &&
			 strlen(name) < sizeof(ret->name) && !strchr(name, ':'))
			strcpy(ret->name, name);
	}
}

static void take_control(struct msghdr *message, struct notification *ret)
{
	struct cmsghdr *c;
	struct ucred sender;

	for (c = CMSG_FIRSTHDR(message); c; c = CMSG_NXTHDR(message, c)) {
		if (c->cmsg_level != SOL_SOCKET)
			continue;
		if (c->cmsg_type == SCM_RIGHTS) {
			ret->n_fds = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
			memcpy(ret->fds, CMSG_DATA(c),
			       ret->n_fds * sizeof(int));
		} else if (c->cmsg_type == SCM_CREDENTIALS) {
			memcpy(&sender, CMSG_DATA(c), sizeof(sender));
			ret->sender = sender.pid;
		}
	}
}

static void act(struct supervisor *s, struct notification *note)
{
	bool is_ours = s->child > 0 && note->sender == s->child;
	size_t i;

	for (i = 0; i < note->n_fds; i++) {
		if (is_ours && note->is_store && *note->name)
			keep(s, note->fds[i], note->name);
		else
			close(note->fds[i]);
	}
	if (is_ours && note->is_remove && *note->name)
		forget(s, note->name);
	if (is_ours && note->is_ready)
		s->was_ready = true;
}

/* Read one notification. Returns false if there is none. */
static bool receive(struct supervisor *s)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(sizeof(struct ucred)) +
			   CMSG_SPACE(sizeof(int) * MAX_FDS_PER_MESSAGE)];
	} control;
	char text[4096];
	struct iovec part = {text, sizeof(text) - 1};
	struct msghdr message = {
		.msg_iov = &part,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control),
	};
	struct notification note = {0};
	ssize_t n;

	do
		n = recvmsg(s->notify_fd, &message,
			    MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return false;
	text[n] = '\0';
	take_control(&message, &note);
	if (!(message.msg_flags & (MSG_TRUNC | MSG_CTRUNC)))
		parse(text, &note);
	act(s, &note);
	return true;
}

static void drain(struct supervisor *s)
{
	while (receive(s))
		;
}

/* --- the child ----------------------------------------------------------- */

static bool move_high(int fd, int above, int *ret)
{
	*ret = fcntl(fd, F_DUPFD_CLOEXEC, above);
	return *ret >= 0;
}

/*
 * Put the listening socket, the kept descriptors and the notification socket at
 * FIRST_FD and above, in that order, and close all other descriptors. All are
 * first moved to higher numbers, since each may have the number of another.
 */
static bool place_fds(struct supervisor *s, int n)
{
	int high[MAX_KEPT + 2];
	int above = FIRST_FD + n;
	int i;

	assert(n == (int)s->n_kept + 2);
	if (!move_high(s->listen_fd, above, &high[0]) ||
	    !move_high(s->notify_path, above, &high[n - 1]))
		return false;
	for (i = 1; i < n - 1; i++) {
		if (!move_high(s->kept[i - 1].fd, above, &high[i]))
			return false;
	}
	for (i = 0; i < n; i++) {
		if (dup3(high[i], FIRST_FD + i, O_CLOEXEC) < 0)
			return false;
	}
	return close_range((unsigned int)above, ~0U, 0) == 0;
}

static bool set_number(const char *name, int value)
{
	char text[16];

	snprintf(text, sizeof(text), "%d", value);
	return setenv(name, text, 1) == 0;
}

static bool set_environment(const struct supervisor *s, int n_listen)
{
	char names[(MAX_KEPT + 1) * (FDSTORE_NAME_SIZE + 1)] = "listen";
	char path[32];
	char *end = names + strlen(names);
	uint32_t i;

	for (i = 0; i < s->n_kept; i++) {
		*end++ = ':';
		end = stpcpy(end, s->kept[i].name);
	}
	snprintf(path, sizeof(path), "/proc/self/fd/%d", FIRST_FD + n_listen);
	return setenv("NOTIFY_SOCKET", path, 1) == 0 &&
	       setenv("LISTEN_FDNAMES", names, 1) == 0 &&
	       set_number("LISTEN_FDS", n_listen) &&
	       set_number("LISTEN_PID", (int)getpid());
}

/* Restore the limit for the child processes of the broker, which raises its own
 * limit itself. */
static void restore_descriptor_limit(const struct supervisor *s)
{
	if (s->first_limit.rlim_max)
		(void)setrlimit(RLIMIT_NOFILE, &s->first_limit);
}

/* Become the broker, in the child process. If this fails, the child must not
 * return, because its caller would remove the supervisor's socket. */
static int become_child(struct supervisor *s)
{
	int n_listen = (int)s->n_kept + 1;

	(void)sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
	if (!place_fds(s, n_listen + 1) || !set_environment(s, n_listen)) {
		int r = -errno;

		log_line(LOG_LEVEL_ERROR,
			 "cannot hand %d descriptors to the broker: %s",
			 n_listen, strerrordesc_np(-r));
		_exit(error_is_short(r) ? EX_TEMPFAIL : EXIT_FAILURE);
	}
	restore_descriptor_limit(s);
	return 1;
}

/* End a broker that cannot be watched. */
static void end_unwatched(struct supervisor *s)
{
	(void)kill(s->child, SIGKILL);
	while (waitpid(s->child, NULL, 0) < 0 && errno == EINTR)
		;
	drain(s);
	s->child = 0;
}

/* Fork the broker, and watch it. Returns 1 in the child. */
static int fork_child(struct supervisor *s, struct error *err)
{
	/* Without this, the child could print the buffered output again. */
	(void)fflush(NULL);
	s->child = fork();
	if (s->child == 0)
		return become_child(s);
	if (s->child < 0) {
		s->child = 0;
		return error_errno(err, -errno, "cannot start the broker");
	}
	s->child_fd = pidfd_open(s->child, 0);
	if (s->child_fd < 0) {
		(void)error_errno(err, -errno,
				  "cannot watch the broker (pid %d)",
				  (int)s->child);
		end_unwatched(s);
		return err->code;
	}
	return 0;
}

/* Start the broker. Returns 1 in the child. */
static int start(struct supervisor *s, struct error *err)
{
	int r = fork_child(s, err);

	if (r >= 0 || !s->was_ready)
		return r;
	/* Keep trying, since the kept descriptors are lost if this process
	 * exits. */
	log_line(LOG_LEVEL_ERROR, "%s, and try again", err->msg);
	s->restart_ms = now_ms() + FORK_RETRY_MS;
	return 0;
}

/* --- deaths -------------------------------------------------------------- */

/* Count this death. Returns the number of deaths within the window. */
static uint32_t count_death(struct supervisor *s, uint64_t now)
{
	uint32_t n = 0;
	uint32_t i;

	s->deaths[s->n_deaths++ % MAX_DEATHS] = now;
	for (i = 0; i < MAX_DEATHS && i < s->n_deaths; i++)
		n += now - s->deaths[i] < DEATHS_WINDOW_MS;
	return n;
}

static void collect(struct supervisor *s)
{
	int status = 0;

	while (waitpid(s->child, &status, 0) < 0 && errno == EINTR)
		;
	close(s->child_fd);
	s->child_fd = -1;
	if (s->is_ending && WIFSIGNALED(status) &&
	    (WTERMSIG(status) == s->passed_signal ||
	     WTERMSIG(status) == SIGKILL)) {
		/* The child got the signal before it had a handler, or got
		 * SIGKILL, so it ended as requested. */
		s->status = 0;
	} else if (WIFSIGNALED(status)) {
		s->status = 128 + WTERMSIG(status);
		log_line(LOG_LEVEL_ERROR, "broker %d was killed: %s",
			 (int)s->child, strsignal(WTERMSIG(status)));
	} else {
		s->status = WEXITSTATUS(status);
		if (s->status != 0)
			log_line(LOG_LEVEL_ERROR,
				 "broker %d ended with status %d",
				 (int)s->child, s->status);
	}
	s->child = 0;
}

/* Handle the death of the child. Returns true if the supervisor ends. */
static bool handle_death(struct supervisor *s)
{
	uint64_t now = now_ms();
	uint32_t n;

	drain(s);
	collect(s);
	if (s->is_ending || s->status == 0)
		return true;
	/* Until a broker has served clients, nothing would be lost, so that a
	 * start which may fail for ever is not repeated. */
	if (s->status == EX_TEMPFAIL) {
		if (!s->was_ready)
			return true;
		s->restart_ms = now + SHORT_RETRY_MS;
		return false;
	}
	n = count_death(s, now);
	if (n >= MAX_DEATHS) {
		log_line(LOG_LEVEL_ERROR,
			 "the broker died %u times in %d s; the supervisor "
			 "gives up, and drops %u kept descriptors",
			 n, DEATHS_WINDOW_MS / 1000, s->n_kept);
		return true;
	}
	s->restart_ms = now;
	if (n > 1)
		s->restart_ms += (uint64_t)FIRST_DELAY_MS << (n - 2);
	return false;
}

/* --- the loop ------------------------------------------------------------ */

static void pass_signal_on(struct supervisor *s)
{
	struct signalfd_siginfo info;

	if (read(s->signal_fd, &info, sizeof(info)) != sizeof(info))
		return;
	if (info.ssi_signo == SIGHUP) {
		/* If no broker is running, the next one reads its configuration
		 * when it starts. */
		if (s->child > 0)
			(void)kill(s->child, SIGHUP);
		return;
	}
	s->is_ending = true;
	s->passed_signal = (int)info.ssi_signo;
	if (s->child > 0)
		(void)kill(s->child, s->passed_signal);
	else
		s->status = 0; /* no broker was running that could fail */
}

static int wait_ms(const struct supervisor *s)
{
	uint64_t now;

	if (s->child > 0)
		return -1;
	now = now_ms();
	return s->restart_ms > now ? (int)(s->restart_ms - now) : 0;
}

/* Run the supervisor. Returns 0 when it ends, and 1 in the child. */
static int run(struct supervisor *s, struct error *err)
{
	while (!s->is_ending || s->child > 0) {
		struct pollfd fds[] = {
			{.fd = s->notify_fd, .events = POLLIN},
			{.fd = s->signal_fd, .events = POLLIN},
			{.fd = s->child_fd, .events = POLLIN},
		};

		if (s->child == 0 && wait_ms(s) == 0) {
			int r = start(s, err);

			if (r != 0)
				return r;
			continue;
		}
		if (poll(fds, 3, wait_ms(s)) < 0)
			continue;
		if (fds[0].revents)
			(void)receive(s);
		if (fds[1].revents)
			pass_signal_on(s);
		if (fds[2].revents && handle_death(s))
			return 0;
	}
	return 0;
}

/* --- setting up ---------------------------------------------------------- */

/* Make a private directory in which the socket is bound. Returns its
 * descriptor, through which alone it is used: whoever owns its parent could put
 * another directory in its place, and a false socket in that. */
static int make_directory(char *ret, size_t size, struct error *err)
{
	const char *parent = socket_path_runtime_directory();
	int fd;

	if (!parent)
		parent = getenv("TMPDIR");
	if (!parent || !*parent)
		parent = "/tmp";
	if (snprintf(ret, size, "%s/fsdpd-XXXXXX", parent) >= (int)size)
		return error_set(err, -ENAMETOOLONG,
				 "cannot make a directory in \"%s\": its name "
				 "is too long; set TMPDIR to a shorter one",
				 parent);
	if (!mkdtemp(ret))
		return error_set(err, -errno,
				 "cannot make a directory like %s: %s; set "
				 "XDG_RUNTIME_DIR, or else TMPDIR, to one that "
				 "you may write to",
				 ret, strerrordesc_np(errno));
	fd = open(ret, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
	return fd < 0 ? error_errno(err, -errno, "cannot open %s", ret) : fd;
}

static int check_owner(int fd, const char *directory, struct error *err)
{
	struct stat st;

	if (fstat(fd, &st) == 0 && st.st_uid == geteuid() &&
	    !(st.st_mode & (S_IRWXG | S_IRWXO)))
		return 0;
	return error_set(err, -EPERM,
			 "cannot use %s: others may use it, too; set "
			 "XDG_RUNTIME_DIR, or else TMPDIR, to a directory in "
			 "which only you can rename your files",
			 directory);
}

static int bind_notify(struct supervisor *s, int directory_fd)
{
	struct sockaddr_un address = {.sun_family = AF_UNIX};
	int on = 1;

	s->notify_fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (s->notify_fd < 0)
		return -errno;
	if (setsockopt(s->notify_fd, SOL_SOCKET, SO_PASSCRED, &on, sizeof(on)) <
	    0)
		return -errno;
	snprintf(address.sun_path, sizeof(address.sun_path),
		 "/proc/self/fd/%d/notify", directory_fd);
	if (bind(s->notify_fd, (struct sockaddr *)&address, sizeof(address)) <
	    0)
		return -errno;
	s->notify_path = openat(directory_fd, "notify", O_PATH | O_CLOEXEC);
	return s->notify_path < 0 ? -errno : 0;
}

static int open_notify(struct supervisor *s, struct error *err)
{
	char directory[PATH_MAX];
	int fd, r;

	fd = make_directory(directory, sizeof(directory), err);
	if (fd < 0)
		return fd;
	r = check_owner(fd, directory, err);
	if (r == 0) {
		r = bind_notify(s, fd);
		(void)unlinkat(fd, "notify", 0);
		(void)rmdir(directory);
		if (r < 0)
			(void)error_errno(err, r, "cannot bind a socket in %s",
					  directory);
	}
	close(fd);
	return r;
}

static int open_signals(struct supervisor *s, struct error *err)
{
	sigset_t mask;

	sigemptyset(&mask);
	sigaddset(&mask, SIGTERM);
	sigaddset(&mask, SIGINT);
	sigaddset(&mask, SIGHUP);
	s->signal_fd = signalfd(-1, &mask, SFD_CLOEXEC);
	if (s->signal_fd < 0)
		return error_errno(err, -errno, "cannot watch for signals");
	(void)sigprocmask(SIG_BLOCK, &mask, NULL);
	/* If a parent left SIGCHLD ignored, exit statuses would be
	 * discarded. */
	(void)signal(SIGCHLD, SIG_DFL);
	return 0;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

static void deinit(struct supervisor *s)
{
	uint32_t i;

	for (i = 0; i < s->n_kept; i++)
		close(s->kept[i].fd);
	close_fd(s->notify_fd);
	close_fd(s->notify_path);
	close_fd(s->signal_fd);
	close_fd(s->child_fd);
	(void)sigprocmask(SIG_SETMASK, &s->old_mask, NULL);
}

int supervise(int listen_fd, int *ret_status, struct error *err)
{
	struct supervisor s = {
		.listen_fd = listen_fd,
		.notify_fd = -1,
		.notify_path = -1,
		.signal_fd = -1,
		.child_fd = -1,
	};
	pid_t parent = getpid();
	int r;

	(void)sigprocmask(SIG_BLOCK, NULL, &s.old_mask);
	/* There may be more kept descriptors than the usual soft limit allows,
	 * and a child needs twice their number while it moves them. */
	descriptors_raise(&s.first_limit);
	r = open_notify(&s, err);
	if (r == 0)
		r = open_signals(&s, err);
	if (r == 0)
		r = run(&s, err);
	/* In the child these descriptors are closed, or their numbers are used
	 * again. */
	if (getpid() != parent)
		return r;
	deinit(&s);
	if (r == 0)
		*ret_status = s.status;
	return r;
}
