/*
 * The persistent part of a communicator: its name, its mesh, its owner, the
 * last committed step, and its groups.
 *
 * A record is either used by the one run that is neither over nor failed, or
 * kept until its deadline. A record without groups is freed with its run. Each
 * record always has an entry among the deadlines, so that setting its deadline
 * cannot fail.
 *
 * A record counts as COMM_RECORD_CHARGE groups against the quota of its user.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdint.h>

struct comms;
struct error;
struct session;

#define COMM_RECORD_CHARGE 2

/* After a restart, charge for the records and set their deadlines. */
int comm_records_adopt(struct comms *comms, struct error *err);

/* Returns the record of that name, 0 if there is none. */
uint32_t comm_record_find(const struct comms *comms, const char *name);

/* Make a record for this session's user, which is in use. Returns -EPERM if the
 * first component of its name belongs to another user or the user is not in the
 * group, or -EDQUOT, -ENOSPC or -ENOMEM. */
int comm_record_make(struct comms *comms, const struct session *session,
		     const struct comm_join_request *request, uint32_t *ret,
		     struct error *err);

/* Check that the session may join, and that it requests the record's access
 * class. Returns -EACCES or -EINVAL if not. */
int comm_record_check_access(const struct comms *comms,
			     const struct session *session, uint32_t record,
			     const struct comm_join_request *request,
			     struct error *err);

/* Check that the record's groups match the requested mesh. Returns -EINVAL if
 * not. */
int comm_record_check_mesh(const struct comms *comms, uint32_t record,
			   const struct comm_join_request *request,
			   struct error *err);

/* Note that a run with these options has begun. */
void comm_record_use(struct comms *comms, uint32_t record,
		     const struct comm_join_request *request);

/* Keep the record until its deadline, since its run is over. The caller
 * commits. */
void comm_record_keep(struct comms *comms, uint32_t record);

/* Free the record and its groups. The caller commits. */
void comm_record_free(struct comms *comms, uint32_t record);

/* Copy the name and a final 0 to `ret`, of NAME_MAX_SIZE + 1 bytes. */
void comm_record_name(const struct comms *comms, uint32_t record, char *ret);
