/*
 * Verdicts: the words of the state table (shm/table.h) by which a rank sees,
 * without asking, that its run is over.
 *
 * A run has a word from its begin until it is freed, so that its ranks find it
 * failed or not theirs. It says that the run is over; why is
 * said by the reply to the next request. Only the broker writes these words.
 * They outlive it: a run that has failed by its word stays so after a restart,
 * since ranks may have seen it.
 */
#pragma once

struct comm;
struct comms;
struct table;

/* No run goes on. */
void verdicts_clear(struct table *table);
/* After a restart: clear the words of runs that do not go on. */
void verdicts_adopt(const struct comms *comms);

/* The run begins. Without a word, since all are in use, its `verdict` stays 0,
 * and its ranks do nothing alone. */
void verdict_open(struct comm *comm);
/* It has failed. */
void verdict_fail(const struct comm *comm);
/* It is freed. */
void verdict_close(struct comm *comm);
