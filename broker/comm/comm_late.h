/*
 * Lateness: the time at which a rank is too late for the join, a registration,
 * a gather, a reduction or the commit. Then the communicator fails, with a
 * message that names the rank that the others wait for.
 */
#pragma once

struct comm;
struct error;

/* Make the deadline of the communicator. It always has one, if only at the end
 * of time, so that setting it cannot fail for lack of memory. Returns -ENOMEM
 * if it cannot be made. */
int comm_late_init(struct comm *comm, struct error *err);
void comm_late_deinit(struct comm *comm);

/* Set the deadline again, because something for which ranks can be late has
 * begun or ended. */
void comm_late_update(struct comm *comm);
