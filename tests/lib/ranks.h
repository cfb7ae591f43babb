/*
 * Ranks: processes of a test that join communicators, each with a connection of
 * its own.
 *
 * They are actors (actor.h): the test tells all of them, or one, what to do
 * next. What a test sets in its own variables before ranks_start() they
 * inherit; what they say in return is a number and, if something was refused,
 * the sentence.
 */
#pragma once
#include "client/fsdp.h"
#include "tests/lib/actor.h"
#include "tests/lib/daemon.h"
#include <stdint.h>
#include <stdlib.h>

#define RANKS_MAX 8

struct rank_note {
	int code;
	char sentence[600];
};

struct ranks {
	uint32_t n;
	struct actor actors[RANKS_MAX];
	struct rank_note *notes; /* shared, by rank */
};

void ranks_start(struct ranks *ranks, uint32_t n);
/* SIGKILL to all that are left. */
void ranks_stop(struct ranks *ranks);

/* Run `fn` in all of them at the same time. 0 if all gave 0, else what the
 * first that did not gave, with its sentence on stderr. */
int ranks_run(struct ranks *ranks, actor_fn *fn);
/* In two steps; the codes are in the notes. */
void ranks_begin(struct ranks *ranks, actor_fn *fn);
void ranks_end(struct ranks *ranks);
/* In one of them. */
int rank_run(struct ranks *ranks, uint32_t rank, actor_fn *fn);

/* --- in a rank ----------------------------------------------------------- */

uint32_t rank_self(void);
uint32_t rank_world(void);
/* Note the sentence if `r` is negative; gives `r`. */
int rank_say(int r, const char *sentence);
/* The same with libfsdp's sentence. */
int rank_note(int r);

/* --- worker -------------------------------------------------------------- */

/* The pid of the broker's fsdp-worker; 0: there is none. */
pid_t worker_pid(const struct daemon *daemon);
/* Wait until there is one other than `old`. */
pid_t worker_await(const struct daemon *daemon, pid_t old);

/* One of the status's values; ends the test if there is none of that name. */
uint64_t status_value(struct fsdp_client *client, const char *name);
/* Ask until it is as expected; false: it does not become so. */
bool status_await(struct fsdp_client *client, const char *name,
		  uint64_t expected);
