/*
 * The words of the board (board.h) by which ranks gather without the broker.
 *
 * Gathers are numbered in the one order in which all ranks begin them. Numbers
 * count from 1 and have 48 bits, so they do not wrap. A group has an index,
 * which is the same for all ranks.
 *
 *   order[n % 1024]   CAS: number << 16 | rank << 10 | group, by the rank that
 *                     is the first to begin gather n; the others compare. It is
 *                     replaced when all ranks have begun gather n - 1024
 *   began             that rank: the number of gathers that it has begun
 *   committed[rank]   that rank: the number of its commits
 *   ended[rank][g]    that rank: the number of the last gather of group g that
 *                     it has resharded
 *   mesh[g]           CAS: number << 16 | rank << 8 | mesh: the rank that was
 *                     the first to reshard it to a smaller mesh
 *   filling[g]        with the lock: number << 16 | buffer: the buffer of the
 *                     group's last whole parameters, and the last gather that
 *                     uses it
 *   buffers           with the lock, except the pieces (pieces.h)
 *   lock              CAS: rank + 1
 *
 * A gather is *over* when every rank has resharded it, and then stays over. All
 * conditions for which ranks wait follow from such words: the limiter depends
 * only on which earlier gathers are over, so there is no count that a death
 * could leave wrong. A buffer belongs to a gather until the gather is over. If
 * another gather of the group begins before, it shares the memory, because
 * committed shards do not change, and keeps it until it is over itself.
 *
 * The first rank that needs a buffer takes the lock to choose one. It never
 * waits while it has the lock. The other ranks read `filling`. If a rank dies
 * with the lock, the run ends, as after any other death of a rank.
 *
 * All words are input: an index is checked before it is used, and the broker,
 * not this file, tells which memory a buffer has.
 */
#pragma once
#include "shm/bell.h"
#include "shm/pieces.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct board;

#define GATHERS_GROUPS 1024
#define GATHERS_PLACES 1024
/* A rank may be so many gathers ahead of others, and at most twice as many. */
#define GATHERS_AHEAD   (GATHERS_PLACES / 2)
#define GATHERS_BUFFERS 1024
#define GATHERS_RANKS   64

/* A rank writes its line with each gather, so others read it seldom. */
struct gathers_rank {
	_Alignas(64) _Atomic uint64_t began;
	/* Counters for display. Each gather is counted by the rank that began
	 * it first (unshards), and by the rank that did its last piece. */
	_Atomic uint64_t n_unshards, n_limited, n_gathers, n_bytes;
};

struct gathers_buffer {
	/* number of the gather; 0: never used */
	_Alignas(64) _Atomic uint64_t last;
	/* the step for which a mesh keeps it; 0: it is not kept */
	_Atomic uint64_t kept;
	_Atomic uint64_t size;    /* requested size in bytes */
	_Atomic uint32_t group;   /* the group of that gather */
	_Atomic uint32_t lap;     /* of the pieces */
	_Atomic uint32_t version; /* version of the memory, from 1 */
	struct pieces pieces;
};

struct gathers_page {
	_Atomic uint64_t order[GATHERS_PLACES];
	_Atomic uint64_t filling[GATHERS_GROUPS];
	_Atomic uint64_t mesh[GATHERS_GROUPS];
	struct gathers_rank ranks[GATHERS_RANKS];
	struct gathers_buffer buffers[GATHERS_BUFFERS];
	_Atomic uint64_t ended[GATHERS_RANKS][GATHERS_GROUPS];
	_Atomic uint64_t committed[GATHERS_RANKS];
};

/* It has its own cache line, because all ranks ring the bell before it. */
struct gathers_lock {
	_Alignas(64) _Atomic uint32_t owner;
	/* buffers that were ever used; written with the lock */
	_Atomic uint32_t n_buffers;
};

/* --- beginning and ending ------------------------------------------------ */

struct gathers_turn {
	uint32_t group, rank;
};

enum gathers_begun {
	GATHERS_FIRST, /* this rank is the first to begin it */
	GATHERS_SAME,  /* other ranks have begun it */
	/* other ranks have begun another group with that number */
	GATHERS_OTHER,
	GATHERS_IS_FAR, /* a rank is more than GATHERS_AHEAD behind */
};

/* Begins gather `number`, which must be the one after the rank's last gather.
 * On success and for GATHERS_OTHER `ret` has its group and the rank that began
 * it first. */
enum gathers_begun gathers_begin(const struct board *board, uint32_t rank,
				 uint64_t number, uint32_t group,
				 struct gathers_turn *ret);

/* Returns whether any rank has begun that gather, and which rank was the
 * first. */
bool gathers_look(const struct board *board, uint64_t number,
		  struct gathers_turn *ret);

/* Sets that the rank has resharded it. Rings if other ranks may then
 * continue. */
void gathers_end(const struct board *board, uint32_t rank, uint64_t number,
		 uint32_t group);

/* Must be called before gathers_end(). `mesh` is the smaller mesh to which the
 * rank reshards, or 0. Returns false if another rank has set another mesh;
 * `ret_rank` and `ret_mesh` are then its values. A difference is not detected
 * if one rank reshards to 0 while another reshards to a mesh, or if a rank has
 * resharded a later gather of the group. */
bool gathers_set_mesh(const struct board *board, uint32_t rank, uint64_t number,
		      uint32_t group, uint32_t mesh, uint32_t *ret_rank,
		      uint32_t *ret_mesh);

/* Returns the ranks that have not resharded it, as a mask; 0: it is over. */
uint64_t gathers_open(const struct board *board, uint64_t number,
		      uint32_t group);

/* Returns the last gather of the group for which memory was chosen, or 0. */
uint64_t gathers_last(const struct board *board, uint32_t group);

/* Sets the number of commits that the rank has begun. A rank whose commit fails
 * sets the old number again. */
void gathers_commit(const struct board *board, uint32_t rank, uint64_t n);
/* Finds a rank that has committed that often. Returns false if there is
 * none. */
bool gathers_find_commit(const struct board *board, uint64_t n,
			 uint32_t *ret_rank);

/* --- memory -------------------------------------------------------------- */

/* A buffer as a gather uses it until the rank reshards. */
struct gathers_fill {
	uint32_t buffer, version, lap;
};

/* Finds the buffer that was chosen for that gather, or for a later gather of
 * its group, which also contains this one. Returns GATHERS_FOUND, 0 if none was
 * chosen yet, or -EPROTO if there is no such buffer. */
int gathers_find(const struct board *board, uint64_t number, uint32_t group,
		 struct gathers_fill *ret);
#define GATHERS_FOUND 1

/* Returns false if another rank has the lock. The bell `gathering` rings when
 * it is released. */
bool gathers_lock(const struct board *board, uint32_t rank);
void gathers_unlock(const struct board *board);
/* Returns the rank that has the lock, or UINT32_MAX. */
uint32_t gathers_locker(const struct board *board);

/* Chooses a buffer of `size` bytes for the parameters of the group at `step`.
 * The caller has the lock. Returns -EPROTO if the words are invalid. */
int gathers_choose(const struct board *board, uint64_t number, uint32_t group,
		   uint64_t size, uint64_t step);
/* Sets that the memory of this fill was lost. The caller has the lock. The
 * group is then gathered again into other memory. Does nothing if another rank
 * has done so already. */
void gathers_lose(const struct board *board, uint32_t group,
		  const struct gathers_fill *fill);
/* Keeps the memory of this gather, which this rank has not ended, until the
 * next step. The caller has the lock. If a later gather uses the memory, the
 * ranks that reshard that one decide. */
void gathers_keep(const struct board *board, uint64_t number, uint32_t group,
		  uint64_t step);
/* The broker needs memory: these give up one buffer, or all, if no rank uses
 * them. They get other memory when they are used again. The caller has the
 * lock. */
void gathers_retire_one(const struct board *board, uint32_t buffer);
void gathers_retire(const struct board *board);

struct pieces *gathers_pieces(const struct board *board, uint32_t buffer);
uint32_t gathers_version(const struct board *board, uint32_t buffer);

struct gathers_rank *gathers_of(const struct board *board, uint32_t rank);
