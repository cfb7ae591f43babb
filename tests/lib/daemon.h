/*
 * A real fsdpd in a directory of its own, for tests.
 *
 * All functions end the test process, with the daemon's log on stderr, when
 * something goes wrong that no test is about.
 */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

struct daemon {
	pid_t pid; /* of the supervisor if there is one; 0: stopped */
	bool is_supervised;
	char dir[48];
	char devices[48]; /* folder of the driver's double; "": not ours */
	char socket[80];
};

/* With FSDP_TEST_DEVICES set in the environment the daemon, and the test that
 * starts it, have eight devices (of the driver's double) of their own. */
struct daemon_options {
	bool is_supervised;
	const char *config;     /* lines of fsdpd.conf; NULL: small chunks */
	const char *const *env; /* "NAME=value", NULL at the end; NULL: none */
};

/* The fsdpd that is started: the one beside the test's own program, wherever
 * that lies. */
const char *daemon_program(void);

/* Start it and come back when it accepts connections. */
void daemon_start(struct daemon *daemon);
void daemon_start_supervised(struct daemon *daemon);
void daemon_start_with(struct daemon *daemon,
		       const struct daemon_options *options);

/* Start it again after daemon_kill_broker(), on the same path. */
void daemon_restart(struct daemon *daemon);

/* Replace the lines of its fsdpd.conf, which it reads when it is told to. */
void daemon_write_config(const struct daemon *daemon, const char *text);

/* Ask it to stop, expect that it ends well, remove its directory. Nothing if
 * it is stopped. */
void daemon_stop(struct daemon *daemon);

/* kill -9 the broker itself; comes back when it is dead. If it is supervised a
 * new one is started by its parent. */
void daemon_kill_broker(struct daemon *daemon);

/* Wait until the broker itself has died (by a kill point). */
void daemon_wait_death(struct daemon *daemon, pid_t broker_pid);

/* The process that serves: the supervisor's child if there is one. */
pid_t daemon_broker_pid(const struct daemon *daemon);

const char *daemon_socket(const struct daemon *daemon);
