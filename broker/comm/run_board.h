/*
 * The board of a run (shm/board.h): made when a rank first asks for it, and
 * rung when the run has failed. The broker never waits for what is on it.
 */
#pragma once

struct comm;
struct comms;
struct error;

/* The file, which stays the run's. -EOPNOTSUPP: some ranks are on other nodes,
 * or the run has no verdict by which those who wait would learn of its end. */
int run_board_fd(struct comm *comm, int *ret_fd, struct error *err);

/* Count what its ranks have reduced since the last time. */
void run_board_count(struct comm *comm);

/* The same of all runs. */
void run_boards_count(struct comms *comms);

/* The run has failed, which its verdict says already: wake those who wait. */
void run_board_ring(struct comm *comm);

/* The run is freed. */
void run_board_close(struct comm *comm);
