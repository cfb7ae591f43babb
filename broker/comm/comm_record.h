/*
 * The persistent part of a communicator: its name, its mesh, its owner, the
 * last committed step, and its groups.
 *
 * A record is either in use by the one run that is neither over nor failed, or
 * it is kept: then it has a deadline. A record without groups is freed with its
 * run. Each record always has an entry among the deadlines, so that setting its
 * deadline cannot fail.
 *
 * A record counts as COMM_RECORD_CHARGE groups against the quota of its user.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdint.h>

struct comms;
struct error;
struct session;

#define COMM_RECORD_CHARGE 16

/* After a restart: charge for them, and set their deadlines. */
int comm_records_adopt(struct comms *comms, struct error *err);

/* Find the record of that name. Returns 0 without one. */
uint32_t comm_record_find(const struct comms *comms, const char *name);

/* Make a record for this session's user, in use. -EPERM: the first component of
 * its name is another user's, or the user is not in the group; -EDQUOT,
 * -ENOSPC, -ENOMEM. */
int comm_record_make(struct comms *comms, const struct session *session,
		     const struct comm_join_request *request, uint32_t *ret,
		     struct error *err);

/* May the session join it, and does it request the record's access class?
 * -EACCES, -EINVAL. */
int comm_record_check_access(const struct comms *comms,
			     const struct session *session, uint32_t record,
			     const struct comm_join_request *request,
			     struct error *err);

/* Do the record's groups match the requested mesh? -EINVAL. */
int comm_record_check_mesh(const struct comms *comms, uint32_t record,
			   const struct comm_join_request *request,
			   struct error *err);

/* A run with these options begins. */
void comm_record_use(struct comms *comms, uint32_t record,
		     const struct comm_join_request *request);

/* The run is over: keep the record until its deadline. The caller commits. */
void comm_record_keep(struct comms *comms, uint32_t record);

/* Free the record and its groups. The caller commits. */
void comm_record_free(struct comms *comms, uint32_t record);

/* Copy the name and a final 0 to `ret`, of NAME_MAX_SIZE + 1 bytes. */
void comm_record_name(const struct comms *comms, uint32_t record, char *ret);
