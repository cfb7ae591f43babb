/*
 * Verdicts: the words of the state table (shm/table.h) by which a rank sees,
 * without asking, that its run is over.
 *
 * A run has a word from its begin until it is freed, so that its ranks find it
 * failed or not theirs. It says that the run is over; why is
 * said by the reply to the next request. Only the broker writes these words,
 * and it does not read them but to find a free one: they are rebuilt from
 * nothing, since no run survives a restart.
 */
#pragma once

struct comm;
struct table;

/* At the start of the broker. */
void verdicts_clear(struct table *table);

/* The run begins. Without a word, since all are in use, its `verdict` stays 0,
 * and its ranks do nothing alone. */
void verdict_open(struct comm *comm);
/* It has failed. */
void verdict_fail(const struct comm *comm);
/* It is freed. */
void verdict_close(struct comm *comm);
