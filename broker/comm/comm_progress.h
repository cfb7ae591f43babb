/*
 * Rounds between requests, in which the work of communicators continues.
 *
 * Requests only record what a rank wants. A round starts what can be started,
 * completes commits, and releases what a failed run held.
 */
#pragma once
#include <stdbool.h>

struct broker;

/* Memory was freed or made: continue gathers and registrations. */
void comms_on_room(struct broker *broker);

/* The communicators' part of an idle round. True: there is more to do. */
bool comms_on_idle(struct broker *broker);
