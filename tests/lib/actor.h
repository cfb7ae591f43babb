/*
 * Other processes of a test, which run as other users. Each runs functions of
 * the test one after another, when the test tells it to. Actors and test share
 * memory that the test mapped with MAP_SHARED before the actors began.
 */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

struct identity {
	uid_t uid;
	gid_t gid;
	gid_t group; /* number of an additional group, or 0 */
};

struct actor {
	pid_t pid;
	int fd;
	bool is_busy; /* its function has not returned yet */
};

/* Returns what the function returned in the actor. */
typedef int actor_fn(void);

/* These are two unused users; only root can change to them. */
bool actor_may_be_others(void);

/* If `identity` is NULL, the actor runs as the present user. */
void actor_start(struct actor *actor, const struct identity *identity);

/* Runs `fn` in the actor. Returns -ECHILD if the actor died of it. */
int actor_run(struct actor *actor, actor_fn *fn);
/* These two functions do the same in two steps: start and wait. */
void actor_begin(struct actor *actor, actor_fn *fn);
int actor_end(struct actor *actor);

/* Waits until the actor has ended by itself. Returns its status (waitpid()). */
int actor_wait(struct actor *actor);
/* Kills the actor with SIGKILL and reaps it. Does nothing if it was not
 * started. */
void actor_kill(struct actor *actor);
/* Does the same at the end of a test. In a build for coverage an actor that
 * waits for a command ends by itself, and so writes its counts. */
void actor_stop(struct actor *actor);
