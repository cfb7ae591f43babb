/*
 * Rounds between requests, in which the work of communicators continues.
 *
 * Requests only record the wishes of ranks. A round starts work that is
 * possible, completes commits, and releases the memory that a failed run held.
 */
#pragma once
#include <stdbool.h>

struct comms;

/* Continue gathers and registrations, because memory was freed or made. */
void comms_on_room(struct comms *comms);

/* Run a round for each communicator that needs one, when the loop is idle.
 * Returns true if there is more to do. */
bool comms_on_idle(struct comms *comms);
