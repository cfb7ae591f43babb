/*
 * Collectives, from the call to the stream, and their work there.
 *
 * The thread keeps calls between ncclGroupStart() and ncclGroupEnd(). The end
 * gives them their numbers. The communicator then is "in progress": the calls
 * are not on the stream yet. A program that enqueues work after them without a
 * query first sees an effect that the real library also has at times, because
 * it enqueues from a thread of its own.
 */
#pragma once
#include "tests/fakes/nccl/api.h"

struct collective;

/* Connects the ranks for pending collectives. Returns ncclInProgress until all
 * have begun them. */
ncclResult_t collective_connect(ncclComm_t comm);

/* Enqueues pending collectives on their streams. */
void collective_issue(ncclComm_t comm);

/* Frees a list that will not run. */
void collective_drop(struct collective *list);
