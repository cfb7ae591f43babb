/*
 * Lateness: the time at which a rank is too late for the join, a registration,
 * a gather, a reduction or the commit. The communicator then fails, with the
 * rank that the others wait for.
 */
#pragma once

struct comm;
struct error;

/* A communicator always has a deadline, if only at the end of time, so that
 * setting it cannot fail for lack of memory. -ENOMEM. */
int comm_late_init(struct comm *comm, struct error *err);
void comm_late_deinit(struct comm *comm);

/* Set the deadline again, after something that ranks can be late for has begun
 * or ended. */
void comm_late_update(struct comm *comm);
