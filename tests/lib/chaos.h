/*
 * A broker and clients that are killed at chosen places, and the books that
 * must balance afterwards.
 *
 * Builds with FSDP_TEST_POINTS pass named points (proto/failpoint.h). A test
 * runs something once and reads which points it passed; then it does the same
 * again, each time with a plan that kills the process at one of them.
 */
#pragma once
#include "client/fsdp.h"
#include "tests/lib/daemon.h"
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/types.h>

/* What no test is about, in any process: it ends with a core and a line. */
#define must(condition)                                                        \
	do {                                                                   \
		if (condition)                                                 \
			break;                                                 \
		fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,         \
			#condition, fsdp_error());                             \
		abort();                                                       \
	} while (0)

/* Were points compiled in? Without them nothing dies. */
bool chaos_has_points(void);

struct chaos {
	struct daemon daemon; /* supervised */
	char dir[32];
	char plan[48];     /* the broker follows it */
	char points[48];   /* the broker logs here */
	char failures[48]; /* calls of the broker that shall fail */
};

/* Start a supervised broker with that configuration (NULL: small chunks). */
void chaos_start(struct chaos *chaos, const char *config);
void chaos_stop(struct chaos *chaos);
struct fsdp_client *chaos_connect(const struct chaos *chaos);

/* --- points -------------------------------------------------------------- */

struct passage {
	char name[48];
	unsigned int n; /* how often it was passed */
};

struct passages {
	struct passage list[128];
	size_t n;
};

/* Forget what was passed, read what was since. */
void passages_forget(const char *path);
void passages_read(const char *path, struct passages *ret);

/* Die at the n-th passage of `point` from now on. */
void plan_death(const char *path, const char *point, unsigned int n);
/* Fail so at the n-th passage. */
void plan_failure(const char *path, const char *point, unsigned int n,
		  int number);
/* Lines "point n", one death each, in this order. */
void plan_write(const char *path, const char *lines);
/* Have all its deaths happened? */
bool plan_is_done(const char *path);
void plan_drop(const char *path);

/* Does the error say that there was too little of something: memory,
 * descriptors, time? */
bool is_shortage(int r);
/* Does it say that the broker was away for too long? */
bool is_lost(int r);

/* --- books --------------------------------------------------------------- */

/* Of `status`, by the names there; bytes are those of devices, too. */
struct figures {
	uint64_t epoch, supervised, pid;
	uint64_t sessions, slots, slots_limbo, blocks, bundles, tickets;
	uint64_t grants, bytes_live;
	uint64_t chunks, chunk_bytes;
};

#define FIGURE_ANY UINT64_MAX

void figures_read(struct fsdp_client *client, struct figures *ret);
/* Wait until all from `sessions` on are as in `expected`, but for those that
 * are FIGURE_ANY; false, with the differences on stderr, if they do not become
 * so. */
bool figures_await(struct fsdp_client *client, const struct figures *expected);

/*
 * Is every named tensor as it should be, and is there soon nothing else in the
 * broker but `n_sessions` sessions?
 */
typedef bool entry_check_fn(struct fsdp_client *client,
			    const struct fsdp_entry *entry);
bool audit(struct fsdp_client *client, uint64_t n_sessions,
	   entry_check_fn *check);

/* Does the supervisor soon keep `n` files, no more and no fewer? */
bool keeps_await(const struct chaos *chaos, uint64_t n);

/* How often the tensor of that name is held, by all sessions together. */
int64_t count_holds(struct fsdp_client *client, const char *name);
/* The same for what a handle shows. */
int64_t count_slot_holds(struct fsdp_client *client,
			 const struct fsdp_tensor *tensor);

/* Remove every name and bundle that begins with `prefix`. */
void remove_all(struct fsdp_client *client, const char *prefix);

/* --- tensors whose contents say which they are --------------------------- */

uint64_t pattern_tag(const char *name, uint64_t version);
void pattern_fill(struct fsdp_tensor *tensor, uint64_t tag);
/* Are all bytes those of `tag`? */
bool pattern_is(const struct fsdp_tensor *tensor, uint64_t tag);
/* All but the first eight? */
bool pattern_follows(const struct fsdp_tensor *tensor, uint64_t tag);

/* A filled tensor of 4 KiB. */
struct fsdp_tensor *pattern_make(struct fsdp_client *client, uint64_t tag);
/* Make, publish with FSDP_REPLACE, let go. Its tag is of name and version,
 * which must be the one that the name gets. */
void pattern_put(struct fsdp_client *client, const char *name,
		 uint64_t version);
/* Get it by name: does it have this version and its contents? */
bool pattern_is_published(struct fsdp_client *client, const char *name,
			  uint64_t version);
/* The same for audit(). */
bool pattern_is_entry(struct fsdp_client *client,
		      const struct fsdp_entry *entry);

/* --- processes ----------------------------------------------------------- */

typedef void child_fn(void *data);

/* Run `fn` in a child process, which dies with the test. */
pid_t child_start(child_fn *fn, void *data);
/* The signal it died of, or minus its exit status. */
int child_wait(pid_t pid);
int child_kill(pid_t pid);
/* Start it and wait for it; did it end well? A driver that was loaded does not
 * survive fork(): who forks later has others look at devices. */
bool child_run(child_fn *fn, void *data);

/* Shared with children; zeroed; stays until the process ends. */
void *shared_memory(size_t size);

void nap_ms(unsigned int ms);
