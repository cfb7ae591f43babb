/*
 * A broker and clients that are killed at chosen places, and the counters that
 * must balance afterwards.
 *
 * Builds with FSDP_TEST_POINTS pass failpoints (proto/failpoint.h). A test runs
 * something once and reads which failpoints it passed. Then it does the same
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

/* Checks a condition that is not the subject of a test, in any process. If it
 * is false, the process prints a line and dumps core. */
#define must(condition)                                                        \
	do {                                                                   \
		if (condition)                                                 \
			break;                                                 \
		fprintf(stderr, "%s:%d: %s: %s\n", __FILE__, __LINE__,         \
			#condition, fsdp_error());                             \
		abort();                                                       \
	} while (0)

/* Returns whether the build has failpoints. Without them no planned death
 * happens. */
bool chaos_has_points(void);

struct chaos {
	struct daemon daemon; /* supervised */
	char dir[32];
	char plan[48];   /* file of the broker's plan */
	char points[48]; /* file in which the broker logs the failpoints that it
			    passed */
	/* file with the calls of the broker that must fail */
	char failures[48];
};

/* Starts a supervised broker with that configuration. NULL sets small
 * chunks. */
void chaos_start(struct chaos *chaos, const char *config);
void chaos_stop(struct chaos *chaos);
struct fsdp_client *chaos_connect(const struct chaos *chaos);

/* --- points -------------------------------------------------------------- */

struct passage {
	char name[48];
	unsigned int n; /* how often the process passed it */
};

struct passages {
	struct passage list[128];
	size_t n;
};

/* Deletes the log of passed failpoints, or reads it. */
void passages_forget(const char *path);
void passages_read(const char *path, struct passages *ret);

/* Plans that the process dies at the n-th passage of `point` from now on. */
void plan_death(const char *path, const char *point, unsigned int n);
/* Plans that the call fails with `number` at the n-th passage. */
void plan_failure(const char *path, const char *point, unsigned int n,
		  int number);
/* Lines are "point n"; each causes one death, in this order. */
void plan_write(const char *path, const char *lines);
/* Returns whether all deaths of the plan have happened. */
bool plan_is_done(const char *path);
void plan_drop(const char *path);

/* Returns whether the error is a lack of memory, descriptors or time. */
bool is_shortage(int r);
/* Returns whether the error says that the broker was away for too long. */
bool is_lost(int r);

/* --- books --------------------------------------------------------------- */

/* The fields have the names of values in `status`. Bytes include those of
 * devices. */
struct figures {
	uint64_t epoch, supervised, pid;
	uint64_t sessions, slots, slots_limbo, blocks, bundles, tickets;
	uint64_t grants, bytes_live;
	uint64_t chunks, chunk_bytes;
};

#define FIGURE_ANY UINT64_MAX

void figures_read(struct fsdp_client *client, struct figures *ret);
/* Waits until all figures from `sessions` on are as in `expected`, except those
 * that are FIGURE_ANY. If that does not happen, prints the differences on
 * stderr and returns false. */
bool figures_await(struct fsdp_client *client, const struct figures *expected);

/*
 * Waits until the broker has the client's session and the named tensors, and
 * nothing else. Returns false if that does not happen, or if a named tensor is
 * not as it should be.
 */
typedef bool entry_check_fn(struct fsdp_client *client,
			    const struct fsdp_entry *entry);
bool audit(struct fsdp_client *client, entry_check_fn *check);

/* Waits until the supervisor keeps exactly `n` files. */
bool keeps_await(const struct chaos *chaos, uint64_t n);

/* Returns how many holds all sessions together have of the tensor of that
 * name. */
int64_t count_holds(struct fsdp_client *client, const char *name);
/* Returns the same for the tensor of a handle. */
int64_t count_slot_holds(struct fsdp_client *client,
			 const struct fsdp_tensor *tensor);

/* Removes every name and bundle that begins with `prefix`. */
void remove_all(struct fsdp_client *client, const char *prefix);

/* --- tensors whose contents say which they are --------------------------- */

uint64_t pattern_tag(const char *name, uint64_t version);
void pattern_fill(struct fsdp_tensor *tensor, uint64_t tag);
/* Returns whether all bytes follow from `tag`. */
bool pattern_is(const struct fsdp_tensor *tensor, uint64_t tag);
/* Returns whether all bytes but the first eight follow from it. */
bool pattern_follows(const struct fsdp_tensor *tensor, uint64_t tag);

/* Makes a filled tensor of 4 KiB. */
struct fsdp_tensor *pattern_make(struct fsdp_client *client, uint64_t tag);
/* Makes a tensor, publishes it with FSDP_REPLACE, and releases it. Its tag
 * follows from the name and from `version`, which must be the one that the
 * broker gives it. */
void pattern_put(struct fsdp_client *client, const char *name,
		 uint64_t version);
/* Returns whether the name shows this version, with its contents. */
bool pattern_is_published(struct fsdp_client *client, const char *name,
			  uint64_t version);

/* --- processes ----------------------------------------------------------- */

typedef void child_fn(void *data);

/* Runs `fn` in a child process, which is killed when the test ends. */
pid_t child_start(child_fn *fn, void *data);
/* Returns the number of the signal that killed the child, or minus its exit
 * status. */
int child_wait(pid_t pid);
int child_kill(pid_t pid);
/* Starts the child and waits for it. Returns whether it ended well. A loaded
 * driver does not survive fork(), so a test that forks later uses devices only
 * in children. */
bool child_run(child_fn *fn, void *data);

/* Maps zeroed memory that children share. It stays until the process ends. */
void *shared_memory(size_t size);

void nap_ms(unsigned int ms);
