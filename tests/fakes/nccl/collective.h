/*
 * Collectives: from the call to the stream, and what they do there.
 *
 * Calls between ncclGroupStart() and ncclGroupEnd() are kept by the thread; the
 * end gives them their numbers. The communicator then is "in progress": they
 * are not on the stream yet, and whoever enqueues work behind them without
 * asking first sees what the real one, which enqueues from a thread of its own,
 * shows at times.
 */
#pragma once
#include "tests/fakes/nccl/api.h"

struct collective;

/* Put on their streams what is pending. */
void collective_issue(ncclComm_t comm);

/* Free a list that will not run. */
void collective_drop(struct collective *list);
