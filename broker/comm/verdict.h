/*
 * Verdicts: the words of the state table (shm/table.h) by which a rank sees,
 * without a request, that its run is over.
 *
 * A run has a word from its beginning until it is freed, so that each of its
 * ranks finds that the run has failed, or that the word no longer belongs to
 * the run. The word says only that the run is over; the reply to the next
 * request says why. Only the broker writes these words. They outlive it: a run
 * that has failed by its word remains failed after a restart, since ranks may
 * have seen the word.
 */
#pragma once

struct comm;
struct comms;
struct table;

/* Clear all words, since no run is continued. */
void verdicts_clear(struct table *table);
/* Clear the words of runs that are not continued, after a restart. */
void verdicts_adopt(const struct comms *comms);

/* Take a word for a run that begins. If all words are in use, `verdict` remains
 * 0, and the ranks do no work by themselves. */
void verdict_open(struct comm *comm);
/* Store that the run has failed. */
void verdict_fail(const struct comm *comm);
/* Free the word of a run that is being freed. */
void verdict_close(struct comm *comm);
