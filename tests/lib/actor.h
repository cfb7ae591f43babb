/*
 * Other processes of a test, as other users: each runs functions of the test
 * one after the other, when it is told to.
 *
 * What they share with the test they find in memory that was mapped MAP_SHARED
 * before they began.
 */
#pragma once
#include <stdbool.h>
#include <sys/types.h>

struct identity {
	uid_t uid;
	gid_t gid;
	gid_t group; /* one more; 0: none */
};

struct actor {
	pid_t pid;
	int fd;
};

/* Gives what the function that ran in the actor gave. */
typedef int actor_fn(void);

/* Two unused users at once are root's privilege. */
bool actor_may_be_others(void);

/* `identity` NULL: who we are. */
void actor_start(struct actor *actor, const struct identity *identity);

/* Run `fn` there; -ECHILD if it died of it. */
int actor_run(struct actor *actor, actor_fn *fn);
/* The same in two steps. */
void actor_begin(struct actor *actor, actor_fn *fn);
int actor_end(struct actor *actor);

/* Wait until it has ended by itself; gives its status (waitpid()). */
int actor_wait(struct actor *actor);
/* SIGKILL, and its end. Nothing if it has not been started. */
void actor_kill(struct actor *actor);
