/*
 * How the runs of an earlier broker are continued (run_record.h).
 *
 * Ranks need not reconnect for that: they continue on the board and send a
 * request when they need something. If a rank has died in the meantime, its
 * session is found and ended as after every start, which fails the run.
 */
#pragma once

struct comms;
struct error;
struct sessions;

/* After a restart, continue the runs that can be continued, end the others, and
 * keep the communicators that no rank has joined any more. Call it when the
 * sessions were adopted, and before slot_adopt_all(). */
int comms_adopt(struct comms *comms, const struct sessions *sessions,
		struct error *err);

/* Free the runs again, because the adoption failed, but not the memory that
 * they keep, since slot_adopt_all() has not charged all of it. */
void comms_put_off(struct comms *comms);
