/*
 * The steps of a gather: the limiter, its memory, the engine, and its end.
 */
#pragma once

struct comm;

/* Start the gathers for which the limiter and the memory suffice. Collects
 * limbo first. Commits. */
void gathers_progress(struct comm *comm);
