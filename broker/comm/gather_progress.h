/*
 * The way of a gather from the limiter to its memory, the engine and its end.
 */
#pragma once

struct comm;

/* Start what the limiter and the memory allow. Collects limbo
 * first. Commits. */
void gathers_progress(struct comm *comm);
