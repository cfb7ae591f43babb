/*
 * The persistent part of a group: its registration and the two versions of its
 * shards, which it keeps. It is in the chain of its communicator's record.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct comms;
struct comm;
struct error;
struct group_spec;

/* Returns the charge of a record with a spec of this size to ACCOUNT_GROUPS. */
uint64_t group_record_charge(size_t spec_size);

/* Returns the group of that name in a communicator (record), or 0. */
uint32_t group_record_find(const struct comms *comms, uint32_t comm,
			   const char *name);

struct group_record_options {
	uint32_t comm; /* record of the communicator */
	uint32_t side;
	uint64_t plan_hash;
};

/* Make a record, without shards yet. The caller has charged it; freeing refunds
 * it. Returns -ENOSPC or -ENOMEM on failure, and then nothing has changed. */
int group_record_make(struct comms *comms, const struct group_spec *spec,
		      const struct group_record_options *options, uint32_t *ret,
		      struct error *err);

/* Keep these slots as the shards of that side, and release the former ones. */
void group_record_set_slots(struct comms *comms, uint32_t record, uint32_t side,
			    const uint32_t *slots, uint32_t n);

/* Free the record and the slots that it keeps, and remove it from its
 * communicator's chain. The caller commits. */
void group_record_free(struct comms *comms, uint32_t record);

/* Add the run's counts to the records of its groups. Call it once, while the
 * run has its record and its groups. */
void groups_keep_counts(struct comm *comm);

/* Charge the record after a restart. */
int group_record_adopt(struct comms *comms, uint32_t record, struct error *err);
