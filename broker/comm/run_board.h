/*
 * The board of a run (shm/board.h). It is made when a rank first asks for it,
 * and rung when the run has failed. The broker never waits for changes on it.
 * It is in the fd store, so that a later broker has it, too.
 *
 * The greatest possible memory of its file is charged to the run's user as
 * bytes, like tensors.
 */
#pragma once
#include <stdint.h>

struct comm;
struct comms;
struct error;
struct store;

/* Returns the file, which the run owns. Returns -EOPNOTSUPP if some ranks are
 * on other nodes, or if the run has no verdict by which waiting ranks would
 * learn of its end, and -EDQUOT if the quota is exceeded. RUN_BOARD_WAIT means
 * that tensors are being freed for it; call it again after wake_room(). This
 * commits, so call it before the request changes anything. */
#define RUN_BOARD_WAIT 1
/* The maximum number of boards that outlive the broker. */
#define RUN_BOARDS_KEPT 503
int run_board_fd(struct comm *comm, int *ret_fd, struct error *err);

/* Returns the charge for the boards of this user; NULL stands for all users. */
uint64_t run_boards_memory(const struct comms *comms, const uint32_t *uid);

/* Open the board that earlier ranks got, if any did, after a restart. The
 * groups must exist. */
int run_board_adopt(struct comm *comm, struct error *err);

/* Remove the boards that runs of an earlier broker have left. Call it after
 * their adoption. */
void run_boards_drop_strays(struct store *store);

/* Count the gathers and reductions of its ranks since the last call. */
void run_board_count(struct comm *comm);

/* Do the same for all runs. */
void run_boards_count(struct comms *comms);

/* Note on the board that the rank has left, also if it left before it asked for
 * the board, when it cannot note that itself. */
void run_board_note_left(struct comm *comm, uint32_t rank);

/* Wake the processes that wait on the board, because the run has failed, as its
 * verdict says. */
void run_board_ring(struct comm *comm);

/* Close the board of a run that is being freed. */
void run_board_close(struct comm *comm);
