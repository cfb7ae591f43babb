/*
 * A rank asks the broker for the board of its run (shm/board.h) once, when it
 * is first needed.
 */
#pragma once

struct error;
struct fsdp_comm;

/* Open the board if it is not open yet. -EOPNOTSUPP: the ranks have no memory
 * in common. */
int run_board_open(struct fsdp_comm *comm, struct error *err);

/* This rank leaves, so others must not wait for it. */
void run_board_leave(struct fsdp_comm *comm);

/* A forked child has no mapping of the board. */
void run_board_drop(struct fsdp_comm *comm);
