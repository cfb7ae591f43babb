/*
 * Replaying: a client that lost its connection repeats a request, and gets the
 * reply that was recorded.
 */
#pragma once
#include <stdint.h>

struct recorded_reply;
struct verb_call;

/* Send a recorded reply again, or park until that can be done. Returns enum
 * verb_outcome. */
int verb_replay(struct verb_call *call, uint64_t number,
		const struct recorded_reply *recorded_reply);
