/*
 * Ranks find each other here, and notice that one has ended.
 *
 * The unique id names an abstract socket, on which rank 0 listens. It compares
 * the hellos of the others, and sends them the board. From then on the sockets
 * only report deaths: rank 0 watches all others, and they watch rank 0; a rank
 * that sees one end marks its seat. A thread of each communicator does all of
 * this, and a process that is killed leaves no files.
 */
#pragma once
#include "tests/fakes/nccl/api.h"
#include "tests/fakes/nccl/board.h"
#include <pthread.h>

#define JOIN_MAGIC     0xfa6ecc01
#define JOIN_NAME_SIZE 64

/* The contents of an ncclUniqueId. */
struct join_id {
	uint32_t magic;
	int32_t maker; /* its process must live until all have joined */
	uint64_t maker_start;
	char name[JOIN_NAME_SIZE];
};

void join_id_make(ncclUniqueId *ret);
/* Makes the id of a part of the communicator with that id. Each of its ranks
 * computes the same one. */
void join_id_derive(const struct join_id *id, uint64_t split, int color,
		    struct join_id *ret);

struct join {
	struct join_id id;
	uint32_t rank, n_ranks;
	int gpu; /* two ranks with equal gpu and host are refused */
	char host[64];
	struct board board;
	atomic_bool is_stopped;
	int stop_fd;
	int sockets[BOARD_MAX_RANKS]; /* indexed by rank; -1 if closed */
};

/* The caller has set `id`, `rank`, `n_ranks` and `gpu`. */
ncclResult_t join_init(struct join *join);
void join_deinit(struct join *join);

/* Waits until all ranks are there, and sets the board. Returns ncclInProgress
 * if it was stopped. */
ncclResult_t join_meet(struct join *join);
/* Marks the seats of ranks that die, until stopped. */
void join_watch(struct join *join);

/* Called by another thread. */
void join_stop(struct join *join);
/* A callback for board_wait(); `data` is a join. */
bool join_is_stopped(const void *data);
