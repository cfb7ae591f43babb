/*
 * The steps of a reduction at the engine, and its end.
 */
#pragma once

struct comm;

/* Start the reductions that every rank has submitted. Commits. */
void reductions_progress(struct comm *comm);
