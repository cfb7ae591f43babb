/*
 * Runs: the beginning and the end of a struct comm.
 */
#pragma once
#include <stdint.h>

struct comms;
struct comm;
struct comm_join_request;
struct error;

/* The charge of a run, in groups, in addition to that of its
 * record (comm_record.h). */
#define COMM_RUN_CHARGE 4

/* Start a run of the record, for the first rank that joins. Nothing is changed
 * on failure. */
int comm_new(struct comms *comms, uint32_t record,
	     const struct comm_join_request *request, struct comm **ret,
	     struct error *err);

void comm_free(struct comm *comm);

/* Free everything volatile; the records stay. */
void comms_deinit(struct comms *comms);
