/*
 * The words of the board (board.h) by which ranks gather without the broker.
 *
 * Gathers are numbered in the one order in which all ranks begin them. Numbers
 * count from 1 and have 48 bits, so they do not wrap. A group has an index,
 * which is the same for all ranks.
 *
 *   order[n % 1024]   CAS: number << 16 | rank << 10 | group, by the rank that
 *                     is the first to begin gather n; the others compare. It is
 *                     replaced when all ranks have begun the one 1024 before
 *   began, committed  that rank: how many gathers, how many commits
 *   ended[rank][g]    that rank: the number of the last gather of group g that
 *                     it has resharded
 *   mesh[g]           CAS: number << 16 | rank << 8 | mesh: the rank that was
 *                     the first to reshard it to a smaller mesh
 *   filling[g]        with the lock: number << 16 | buffer: where the group's
 *                     last parameters are made whole, for which gather at last
 *   buffers           with the lock, but for the pieces (pieces.h)
 *   lock              CAS: rank + 1
 *
 * A gather is *over* when every rank has resharded it: from there on it is over
 * for ever. All that ranks wait for follows from such words: the limiter is a
 * function of which earlier gathers are over, so there is no count that a
 * death could leave wrong. A buffer belongs to a gather until that is over. A
 * gather of the group that begins before shares its memory, since committed
 * shards do not change, and keeps it for as long as itself is not over.
 *
 * The lock is held for the few words that choose a buffer, by the first rank
 * that needs one: never while anything is waited for. The other ranks read
 * `filling`. A rank that dies with it ends the run, as it would anywhere else.
 *
 * All words are input: an index from here is checked before it is used, and
 * memory is found by what the broker says of a buffer, never by what is here.
 */
#pragma once
#include "shm/bell.h"
#include "shm/pieces.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct board;

#define GATHERS_GROUPS  1024
#define GATHERS_AHEAD   1024 /* how far a rank may be ahead of another */
#define GATHERS_BUFFERS 1024
#define GATHERS_RANKS   64

struct gathers_rank {
	_Alignas(64) _Atomic uint64_t began;
	_Atomic uint64_t committed;
	/* Only shown. Each gather is counted by one rank: that which began it
	 * first, and that which did its last piece. */
	_Atomic uint64_t n_unshards, n_limited, n_gathers, n_bytes;
};

struct gathers_buffer {
	_Alignas(64) _Atomic uint64_t last; /* gather; 0: never used */
	_Atomic uint64_t kept;    /* step of which it is a mesh's; 0: none */
	_Atomic uint64_t size;    /* bytes that were asked for */
	_Atomic uint32_t group;   /* of that gather */
	_Atomic uint32_t lap;     /* of the pieces */
	_Atomic uint32_t version; /* of its memory, from 1 */
	struct pieces pieces;
};

struct gathers_page {
	_Atomic uint64_t order[GATHERS_AHEAD];
	_Atomic uint64_t filling[GATHERS_GROUPS];
	_Atomic uint64_t mesh[GATHERS_GROUPS];
	struct gathers_rank ranks[GATHERS_RANKS];
	struct gathers_buffer buffers[GATHERS_BUFFERS];
	_Atomic uint64_t ended[GATHERS_RANKS][GATHERS_GROUPS];
};

/* On a cache line of its own: all ranks ring the bell beside it. */
struct gathers_lock {
	_Alignas(64) _Atomic uint32_t owner;
	_Atomic uint32_t n_buffers; /* with the lock: that were ever used */
};

/* --- beginning and ending ------------------------------------------------ */

struct gathers_turn {
	uint32_t group, rank;
};

enum gathers_begun {
	GATHERS_FIRST,  /* nobody had begun it */
	GATHERS_SAME,   /* others had */
	GATHERS_OTHER,  /* others have begun another group as that number */
	GATHERS_IS_FAR, /* a rank is GATHERS_AHEAD behind */
};

/* The rank begins gather `number`, the one after its last. `ret`, also on
 * GATHERS_OTHER: whose it is. */
enum gathers_begun gathers_begin(const struct board *board, uint32_t rank,
				 uint64_t number, uint32_t group,
				 struct gathers_turn *ret);

/* Has any rank begun that gather? Then `ret` says which one is the first. */
bool gathers_look(const struct board *board, uint64_t number,
		  struct gathers_turn *ret);

/* The rank has resharded it. Rings if that may let others go on. */
void gathers_end(const struct board *board, uint32_t rank, uint64_t number,
		 uint32_t group);

/* The same to a smaller mesh: call this first. `mesh` 0: to none. False: others
 * gave another mesh, which `ret_rank` and `ret_mesh` say. That is not noticed
 * if a rank reshards to none while another does so to a mesh, or when a rank
 * has resharded a later gather of the group. */
bool gathers_set_mesh(const struct board *board, uint32_t rank, uint64_t number,
		      uint32_t group, uint32_t mesh, uint32_t *ret_rank,
		      uint32_t *ret_mesh);

/* The ranks that have not resharded it, as a mask; 0: it is over. */
uint64_t gathers_open(const struct board *board, uint64_t number,
		      uint32_t group);

/* The last gather of the group that memory was chosen for; 0: none. */
uint64_t gathers_last(const struct board *board, uint32_t group);

/* The rank commits for the `n`-th time, or does not, after all. */
void gathers_commit(const struct board *board, uint32_t rank, uint64_t n);
/* A rank that has committed that often; false: none. */
bool gathers_find_commit(const struct board *board, uint64_t n,
			 uint32_t *ret_rank);

/* --- memory -------------------------------------------------------------- */

/* A buffer as a gather uses it, until the rank reshards. */
struct gathers_fill {
	uint32_t buffer, version, lap;
};

/* Was one chosen for that gather, or a later one of its group, which serves
 * it, too? -EPROTO: there is no such buffer. */
int gathers_find(const struct board *board, uint64_t number, uint32_t group,
		 struct gathers_fill *ret);
#define GATHERS_FOUND 1

/* False: another rank has the lock; `gathers` rings when it is free. */
bool gathers_lock(const struct board *board, uint32_t rank);
void gathers_unlock(const struct board *board);
/* The rank that has it; UINT32_MAX: none. */
uint32_t gathers_locker(const struct board *board);

/* With the lock: choose a buffer of `size` bytes of group's parameters as of
 * `step`. -EPROTO: the words make no sense. */
int gathers_choose(const struct board *board, uint64_t number, uint32_t group,
		   uint64_t size, uint64_t step);
/* With the lock: the memory of this fill was lost, and nobody has it; what was
 * gathered is gathered again, into other memory. Does nothing if another rank
 * has said so already. */
void gathers_lose(const struct board *board, uint32_t group,
		  const struct gathers_fill *fill);
/* With the lock: keep the memory of this gather, which this rank has not ended,
 * until the next step. If a later one has it, those who reshard that one say
 * whether it is kept. */
void gathers_keep(const struct board *board, uint64_t number, uint32_t group,
		  uint64_t step);
/* With the lock: the broker wants memory. Give up that buffer, or each one, if
 * nobody uses it, so that it gets other memory when it is used again. */
void gathers_retire_one(const struct board *board, uint32_t buffer);
void gathers_retire(const struct board *board);

struct pieces *gathers_pieces(const struct board *board, uint32_t buffer);
uint32_t gathers_version(const struct board *board, uint32_t buffer);

struct gathers_rank *gathers_of(const struct board *board, uint32_t rank);
