/*
 * Going on with the runs of an earlier broker (run_record.h).
 *
 * Ranks need not come back for that: they go on with the board and ask when
 * they need something. A rank that has died meanwhile is found with its
 * session, which every start looks for, and its death fails the run as ever.
 */
#pragma once

struct comms;
struct error;
struct sessions;

/* After a restart: go on with the runs that can, end the others, and keep the
 * communicators in which no rank is any more. Call it when the sessions were
 * adopted, and before slot_adopt_all(). */
int comms_adopt(struct comms *comms, const struct sessions *sessions,
		struct error *err);

/* The adoption failed: free the runs again, but nothing that they keep, since
 * slot_adopt_all() has not charged all of it. */
void comms_put_off(struct comms *comms);
