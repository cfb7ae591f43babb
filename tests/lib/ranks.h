/*
 * Ranks: processes of a test that join communicators, each with a connection of
 * its own. They are actors (actor.h): the test tells one or all of them what to
 * do next. They inherit the variables that the test sets before ranks_start().
 * They return a number and, if a request was refused, the sentence.
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
	struct rank_note *notes; /* in shared memory, indexed by rank */
};

void ranks_start(struct ranks *ranks, uint32_t n);
/* Sends SIGKILL to all ranks that still run. */
void ranks_stop(struct ranks *ranks);

/* Runs `fn` in all ranks at the same time. Returns 0 if all returned 0, or the
 * code of the first rank that did not; its sentence is printed on stderr. */
int ranks_run(struct ranks *ranks, actor_fn *fn);
/* Does the same in two steps. The codes are in the notes. */
void ranks_begin(struct ranks *ranks, actor_fn *fn);
void ranks_end(struct ranks *ranks);
/* Runs `fn` in one rank. */
int rank_run(struct ranks *ranks, uint32_t rank, actor_fn *fn);

/* Waits until the first `n` ranks are all asleep in waits of the library, or
 * stopped, at the same time. So none of them can wake another. */
void ranks_await_still(const struct ranks *ranks, uint32_t n);

/* Asserts that the sentence that the rank received last contains `what`. */
#define assert_says(rank, what)                                                \
	cr_assert(ne(ptr, strstr(ranks.notes[rank].sentence, (what)), NULL),   \
		  "\"%s\"", ranks.notes[rank].sentence)

/* --- in a rank ----------------------------------------------------------- */

uint32_t rank_self(void);
uint32_t rank_world(void);
/* Notes the sentence if `r` is negative. Returns `r`. */
int rank_say(int r, const char *sentence);
/* Does the same with libfsdp's sentence. */
int rank_note(int r);

/* Returns whether runs continue when the broker is restarted. They do if the
 * ranks do all work themselves, on host memory. */
bool runs_go_on(void);

/* --- worker -------------------------------------------------------------- */

/* Returns the pid of the broker's fsdp-worker, or 0 if there is none. */
pid_t worker_pid(const struct daemon *daemon);
/* Waits until there is one. */
pid_t worker_await(const struct daemon *daemon);

/* Returns a value of the status. Ends the test if no value has that name. */
uint64_t status_value(struct fsdp_client *client, const char *name);
/* Polls the value until it is as expected. Returns false if it never is. */
bool status_await(struct fsdp_client *client, const char *name,
		  uint64_t expected);
