/*
 * Verdicts: the words of the state table (shm/table.h) by which a rank sees,
 * without asking, that its run is over.
 *
 * A run has a word from its beginning until it is freed, so that each of its
 * ranks finds that the run has failed, or that the word is no longer that of
 * its run. The word says only that the run is over; the reply to the next
 * request says why. Only the broker writes these words. They outlive it: a run
 * that has failed by its word stays so after a restart, since ranks may have
 * seen it.
 */
#pragma once

struct comm;
struct comms;
struct table;

/* Clear all words, since no run goes on. */
void verdicts_clear(struct table *table);
/* After a restart: clear the words of runs that do not go on. */
void verdicts_adopt(const struct comms *comms);

/* The run begins. If all words are in use, its `verdict` stays 0, and its ranks
 * do nothing alone. */
void verdict_open(struct comm *comm);
/* The run has failed. */
void verdict_fail(const struct comm *comm);
/* The run is freed. */
void verdict_close(struct comm *comm);
