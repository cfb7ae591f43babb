/*
 * Rounds between requests, in which the work of communicators continues.
 *
 * Requests only record what a rank wants. A round starts what can be started,
 * completes commits, and releases what a failed run held.
 */
#pragma once
#include <stdbool.h>

struct comms;

/* Memory was freed or made: continue gathers and registrations. */
void comms_on_room(struct comms *comms);

/* The communicators' part of an idle round. True: there is more to do. */
bool comms_on_idle(struct comms *comms);
