/*
 * How ranks find each other, and notice that one is gone.
 *
 * The unique id names an abstract socket, on which rank 0 listens; it compares
 * what the others say of themselves, and hands out the board. From then on the
 * sockets only tell of deaths: rank 0 watches all others, they watch rank 0,
 * and who sees one end marks its seat. All of it is done by a thread of each
 * communicator; nothing is left behind by a process that is killed.
 */
#pragma once
#include "tests/fakes/nccl/api.h"
#include "tests/fakes/nccl/board.h"
#include <pthread.h>

#define JOIN_MAGIC     0xfa6ecc01
#define JOIN_NAME_SIZE 64

/* What stands in an ncclUniqueId. */
struct join_id {
	uint32_t magic;
	int32_t maker; /* its process must live until all have come */
	uint64_t maker_start;
	char name[JOIN_NAME_SIZE];
};

void join_id_make(ncclUniqueId *ret);
/* That of a part of the communicator with that id: the same for all its ranks,
 * which make it each for itself. */
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
	int sockets[BOARD_MAX_RANKS]; /* by rank; -1 */
};

/* `id`, `rank`, `n_ranks` and `gpu` are set. */
ncclResult_t join_init(struct join *join);
void join_deinit(struct join *join);

/* Until all are there; sets the board. ncclInProgress: was stopped. */
ncclResult_t join_meet(struct join *join);
/* Mark the seats of those that die; until stopped. */
void join_watch(struct join *join);

/* From another thread. */
void join_stop(struct join *join);
/* For board_wait(); `data` is a join. */
bool join_is_stopped(const void *data);
