/*
 * The board of the run (shm/board.h), which a rank requests from the broker
 * once, when it first needs it.
 */
#pragma once

struct error;
struct fsdp_comm;

/* Open the board if it is not open. Returns -EOPNOTSUPP if the ranks have no
 * memory in common. */
int run_board_open(struct fsdp_comm *comm, struct error *err);

/* Write that this rank leaves, so that other ranks do not wait for it. */
void run_board_leave(struct fsdp_comm *comm);

/* Forget the board in a forked child, which has no mapping of it. */
void run_board_drop(struct fsdp_comm *comm);
