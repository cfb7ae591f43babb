/*
 * The board of a run (shm/board.h), as one of its ranks has it: the broker is
 * asked for it once, when it is first needed.
 */
#pragma once

struct error;
struct fsdp_comm;

/* Have it. -EOPNOTSUPP: the ranks have no memory in common. */
int run_board_open(struct fsdp_comm *comm, struct error *err);

/* This rank leaves: others shall not wait for it. */
void run_board_leave(struct fsdp_comm *comm);

/* In a forked child nothing of the board is there. */
void run_board_drop(struct fsdp_comm *comm);
