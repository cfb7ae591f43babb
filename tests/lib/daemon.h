/*
 * Tests run a real fsdpd in a directory of its own. If something fails that is
 * not the subject of a test, the functions end the test process, with the
 * daemon's log on stderr.
 */
#pragma once
#include <limits.h>
#include <stdbool.h>
#include <sys/types.h>

struct daemon {
	pid_t pid; /* pid of the supervisor if there is one; 0 if stopped */
	bool is_supervised;
	char dir[48];
	/* folder of the fake driver; "" if the caller made it */
	char devices[48];
	char socket[80];
};

/* If FSDP_TEST_DEVICES is set in the environment, the daemon and the test that
 * starts it have eight devices (of the fake driver) of their own. */
struct daemon_options {
	bool is_supervised;
	const char *config; /* lines of fsdpd.conf; NULL sets small chunks */
	const char *const *env; /* "NAME=value", then NULL; may be NULL */
};

/* Returns the path of the fsdpd that is started, which is next to the test's
 * own program. */
const char *daemon_program(void);

/* Writes "LD_PRELOAD=PATH" for a library of tests/fakes. Returns false in
 * builds with sanitizers, because a sanitizer must be loaded first. */
bool daemon_preload(const char *fake, char ret[PATH_MAX]);

/* Starts the daemon, and returns when it serves connections, or, if it is
 * supervised, when they are accepted. */
void daemon_start(struct daemon *daemon);
void daemon_start_supervised(struct daemon *daemon);
void daemon_start_with(struct daemon *daemon,
		       const struct daemon_options *options);

/* Starts the daemon again on the same path, after daemon_kill_broker(). */
void daemon_restart(struct daemon *daemon);

/* Replaces the lines of its fsdpd.conf, which it reads on request. */
void daemon_write_config(const struct daemon *daemon, const char *text);

/* Asks the daemon to stop, checks that it ends well, and removes its directory.
 * Does nothing if it is stopped. */
void daemon_stop(struct daemon *daemon);

/* Sends SIGKILL to the broker itself and returns when it is dead. If it is
 * supervised, its parent starts a new one. */
void daemon_kill_broker(struct daemon *daemon);

/* Waits until the broker itself has died at a failpoint. */
void daemon_wait_death(struct daemon *daemon, pid_t broker_pid);

/* Returns the process that serves: the supervisor's child if there is one. */
pid_t daemon_broker_pid(const struct daemon *daemon);

/* Returns whether a line of its log contains `text`. */
bool daemon_log_has(const struct daemon *daemon, const char *text);

/* Returns whether fsdpctl, which is next to the test's own program, prints a
 * line that contains `text`. fsdpctl must succeed. */
bool daemon_shows(const struct daemon *daemon, const char *arguments,
		  const char *text);

const char *daemon_socket(const struct daemon *daemon);
