/*
 * The board of a run (shm/board.h): made when a rank first asks for it, and
 * rung when the run has failed. The broker never waits for what is on it. It is
 * in the fd store, so that a later broker has it, too.
 *
 * It is charged to the run's user as bytes of tensors are, with all that its
 * file can take.
 */
#pragma once
#include <stdint.h>

struct comm;
struct comms;
struct error;
struct store;

/* The file, which stays the run's. -EOPNOTSUPP: some ranks are on other nodes,
 * or the run has no verdict by which those who wait would learn of its end.
 * -EDQUOT. RUN_BOARD_WAIT: tensors are being freed for it; call it again after
 * wake_room(). Commits: call it before the request changes anything. */
#define RUN_BOARD_WAIT 1
int run_board_fd(struct comm *comm, int *ret_fd, struct error *err);

/* Return what is charged for the boards of this user; NULL stands for all
 * users. */
uint64_t run_boards_memory(const struct comms *comms, const uint32_t *uid);

/* After a restart, when its groups are there: take the board that earlier ranks
 * got, if any did. */
int run_board_adopt(struct comm *comm, struct error *err);

/* Drop what runs of an earlier broker have left. Call it after their adoption.
 */
void run_boards_drop_strays(struct store *store);

/* Count what its ranks have gathered and reduced since the last time. */
void run_board_count(struct comm *comm);

/* Do the same for all runs. */
void run_boards_count(struct comms *comms);

/* The run has failed, which its verdict already says: wake the processes that
 * wait. */
void run_board_ring(struct comm *comm);

/* The run is freed. */
void run_board_close(struct comm *comm);
