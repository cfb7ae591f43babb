/*
 * Replays: when a client lost its connection and repeats a request, it gets the
 * recorded reply.
 */
#pragma once
struct recorded_reply;
struct verb_call;

/* Send a recorded reply again, or park the request until that is possible.
 * Returns an enum verb_outcome. */
int verb_replay(struct verb_call *call,
		const struct recorded_reply *recorded_reply);
