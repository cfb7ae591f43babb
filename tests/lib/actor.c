/*
 * Actors are forked, so a function has the same address in them as in the test.
 * A command therefore consists of an address only.
 */
#include "tests/lib/actor.h"
#include "tests/lib/patience.h"
#include <errno.h>
#include <grp.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/pidfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

static void __attribute__((noreturn)) die(const char *what)
{
	perror(what);
	abort();
}

bool actor_may_be_others(void)
{
	return geteuid() == 0;
}

static void become(const struct identity *identity)
{
	const gid_t group = identity->group;

	if (setgroups(group ? 1 : 0, &group) < 0 ||
	    setresgid(identity->gid, identity->gid, identity->gid) < 0 ||
	    setresuid(identity->uid, identity->uid, identity->uid) < 0)
		die("actor: become another user");
}

static void __attribute__((noreturn)) play(int fd)
{
	actor_fn *fn;
	int r;

	while (read(fd, &fn, sizeof(fn)) == (ssize_t)sizeof(fn)) {
		r = fn();
		if (write(fd, &r, sizeof(r)) != (ssize_t)sizeof(r))
			break;
	}
#ifdef FSDP_COVERAGE
	exit(0); /* this also writes the line counts of a build for coverage */
#endif
	_exit(0);
}

void actor_start(struct actor *actor, const struct identity *identity)
{
	int fds[2];

	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) < 0)
		die("actor: socketpair");
	actor->pid = fork();
	if (actor->pid < 0)
		die("actor: fork");
	if (actor->pid == 0) {
		close(fds[0]);
		if (identity)
			become(identity);
		/* Changing the user resets both settings. */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_DUMPABLE, 1);
		play(fds[1]);
	}
	close(fds[1]);
	actor->fd = fds[0];
	actor->is_busy = false;
}

void actor_begin(struct actor *actor, actor_fn *fn)
{
	actor->is_busy = true;
	if (write(actor->fd, &fn, sizeof(fn)) != (ssize_t)sizeof(fn))
		die("actor: command");
}

int actor_end(struct actor *actor)
{
	int r;

	if (read(actor->fd, &r, sizeof(r)) != (ssize_t)sizeof(r))
		return -ECHILD;
	actor->is_busy = false;
	return r;
}

int actor_run(struct actor *actor, actor_fn *fn)
{
	actor_begin(actor, fn);
	return actor_end(actor);
}

int actor_wait(struct actor *actor)
{
	int status;

	if (waitpid(actor->pid, &status, 0) < 0)
		die("actor: waitpid");
	close(actor->fd);
	actor->pid = 0;
	return status;
}

void actor_kill(struct actor *actor)
{
	if (actor->pid <= 0)
		return;
	kill(actor->pid, SIGKILL);
	(void)actor_wait(actor);
}

/* An actor that waits for a command then ends, and writes its counts. */
static void let_end(const struct actor *actor)
{
#ifdef FSDP_COVERAGE
	int pidfd = actor->is_busy ? -1 : pidfd_open(actor->pid, 0);
	struct pollfd poll_fd = {.fd = pidfd, .events = POLLIN};

	if (pidfd < 0)
		return;
	shutdown(actor->fd, SHUT_WR);
	(void)poll(&poll_fd, 1, PATIENCE_MS);
	close(pidfd);
#else
	(void)actor;
#endif
}

void actor_stop(struct actor *actor)
{
	if (actor->pid > 0)
		let_end(actor);
	actor_kill(actor);
}
