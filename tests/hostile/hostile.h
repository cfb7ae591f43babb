/*
 * The parts of `hostile`, a program in which hostile processes attack a broker
 * and the processes that share memory with them, while innocent processes
 * check each byte and each call.
 *
 * As root there are three users. The calm ones have nothing in common with the
 * hostile ones: for them all must be as without these. A guest shares its
 * channels and its run with them; these may become useless, but nothing else
 * that it has, and no call may last longer than its time-outs. Without root
 * all are one user.
 */
#pragma once
#include "client/fsdp.h"
#include "tests/lib/chance.h"
#include "tests/lib/exact.h"
#include "tests/lib/soak.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define N_CLIENTS 2 /* calm */
#define N_RANKS   2
#define N_GUESTS  2
#define N_HOSTILE 4

/* What the innocent processes of the siege tell the test. */
struct caller {
	_Atomic uint64_t since_ms; /* of its present call; 0: it is in none */
	_Atomic(const char *) doing;
	_Atomic uint64_t n_calls, n_refused;
	/* what it did with hostile processes */
	_Atomic uint64_t n_items, n_steps;
};

/* The processes share it. */
struct siege {
	const char *socket;
	bool has_users; /* there are three users */
	atomic_int must_end;
	struct caller guests[N_GUESTS];
	_Atomic uint64_t n_items; /* of the calm channel */
	/* what the hostile processes did */
	_Atomic uint64_t n_frames, n_files, n_words;
	struct soak soak;
	struct exact_board training;
};

enum siege_user { USER_CALM, USER_GUEST, USER_HOSTILE };
/* Makes this process, which was just started, one of that user. */
void siege_become(const struct siege *siege, enum siege_user user);

/* A process and the seed of what it does. */
struct life {
	struct siege *siege;
	uint64_t seed; /* odd */
	uint32_t number;
};

/* --- innocent.c: child_fn with struct life ------------------------------- */

void calm_client(void *life);
void calm_rank(void *life);
void calm_producer(void *life);
void calm_consumer(void *life);

/* --- guest.c ------------------------------------------------------------- */

#define GUEST_KEPT 8

/* A process that uses what guests and hostile processes share. */
struct guest {
	struct siege *siege;
	struct fsdp_client *client;
	struct chance chance;
	struct caller *caller;                /* NULL: a hostile one */
	uint32_t rank;                        /* in the run */
	struct fsdp_tensor *kept[GUEST_KEPT]; /* of a guest, whole */
};

bool guest_is_run_time(void);
void guest_use_channel(struct guest *guest);
void guest_use_run(struct guest *guest);
/* child_fn with struct life */
void guest_live(void *life);

/* --- hostile.c: child_fn with struct life -------------------------------- */

void hostile_live(void *life);

/* --- files.c ------------------------------------------------------------- */

/* A file that the broker has sent. This process keeps a descriptor of its own,
 * and if it may write the file, a mapping. */
struct file {
	int fd;
	bool is_chunk;
	/* Writes words that could be right. It is NULL if only random bytes
	 * are written. */
	void (*forge)(struct chance *chance, const struct file *file);
	uint8_t *map; /* NULL: it is not mapped */
	size_t size;
};
#define MAX_FILES 48

/* Notes a descriptor that came. The caller keeps it. */
void files_note(int fd);
/* Returns the files that are mapped. */
uint32_t files_map(struct file ret[MAX_FILES], bool spares_chunks);
/* Opens a file of any kind, or copies a descriptor that the broker has sent.
 * Returns -1 if that is not possible here. */
int files_open_odd(struct chance *chance);
/* Does something to a file that the broker has sent. */
void files_abuse(struct siege *siege, struct chance *chance,
		 bool spares_chunks);

/* --- scribble.c ---------------------------------------------------------- */

struct scribbler {
	struct siege *siege;
	struct chance chance;
	bool spares_chunks;
};

/* Writes to the words of a channel, or of a board. */
void forge_slots(struct chance *chance, const struct file *file);
void forge_board(struct chance *chance, const struct file *file);

/* Writes to these files again and again, from a thread. */
void scribble_begin(const struct scribbler *scribbler);

/* --- frames.c ------------------------------------------------------------ */

/* From now on one of `n` frames that this process sends is changed (0: none),
 * and the descriptors that it receives are noted. */
void frames_spoil(struct siege *siege, uint64_t seed, uint32_t n);
/* Speaks to the broker by itself, with frames like those that were sent. */
void frames_speak(struct siege *siege, struct chance *chance);
