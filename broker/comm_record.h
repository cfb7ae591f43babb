/*
 * What lasts of a communicator: its name, its mesh, whose it is, the last
 * committed step, and its groups.
 *
 * A record is in use by the one run that is not over or failed, or it is kept:
 * then it has a deadline. A record without groups is worth nothing and goes
 * with its run. It always has a place among the deadlines, so that setting one
 * cannot fail.
 *
 * A record counts as COMM_RECORD_CHARGE groups against the quota of its user.
 */
#pragma once
#include "broker/catalog.h"
#include <stdint.h>

struct broker;
struct error;
struct session;

#define COMM_RECORD_CHARGE 16

/* The record of that name; 0. */
uint32_t comm_record_find(const struct broker *broker, const char *name);

/* A new one for this session's user, in use. -EPERM: the first component of
 * its name, or the group, is not the user's; -EDQUOT, -ENOSPC, -ENOMEM. */
int comm_record_make(struct broker *broker, const struct session *session,
		     const struct comm_join_request *request, uint32_t *ret,
		     struct error *err);

/* May the session join it, and does it ask for the class it has? -EACCES,
 * -EINVAL. */
int comm_record_check_access(const struct broker *broker,
			     const struct session *session, uint32_t record,
			     const struct comm_join_request *request,
			     struct error *err);

/* Are its groups of such ranks? -EINVAL. */
int comm_record_check_mesh(const struct broker *broker, uint32_t record,
			   const struct comm_join_request *request,
			   struct error *err);

/* A run begins with these options. */
void comm_record_use(struct broker *broker, uint32_t record,
		     const struct comm_join_request *request);

/* The run is over. The caller commits. */
void comm_record_keep(struct broker *broker, uint32_t record);

/* With its groups. The caller commits. */
void comm_record_free(struct broker *broker, uint32_t record);

/* Its name, with a 0 behind it; `ret` has NAME_MAX_SIZE + 1 bytes. */
void comm_record_name(const struct broker *broker, uint32_t record, char *ret);
