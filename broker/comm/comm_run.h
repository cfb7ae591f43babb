/*
 * Runs: how a struct comm begins and ends.
 */
#pragma once
#include <stdint.h>

struct comms;
struct comm;
struct comm_join_request;
struct error;

/* The charge of a run in groups, in addition to the charge of its record
 * (comm_record.h). */
#define COMM_RUN_CHARGE 4

/* Start a run of the record, for the first rank that joins. Nothing is changed
 * on failure. */
int comm_new(struct comms *comms, uint32_t record,
	     const struct comm_join_request *request, struct comm **ret,
	     struct error *err);

/* After a restart, make the struct of the run that has this run_record. It has
 * no groups, board and ranks yet. */
int comm_revive(struct comms *comms, uint32_t run, struct comm **ret,
		struct error *err);

/* Free the run with everything that it keeps, and wake its parked requests. The
 * record stays if it has groups. The caller commits. */
void comm_free(struct comm *comm);

/* Free everything volatile when the broker ends. The records stay, and so do
 * runs that a later broker can continue. */
void comms_deinit(struct comms *comms);
