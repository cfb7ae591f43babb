/*
 * What lasts of a group: how it was registered, and its two versions of the
 * shards, which it keeps. Hangs in the chain of its communicator's record.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

struct broker;
struct error;
struct group_spec;

/* What a record with so large a spec counts against ACCOUNT_GROUPS. */
uint64_t group_record_charge(size_t spec_size);

/* The group of that name of a communicator (record); 0. */
uint32_t group_record_find(const struct broker *broker, uint32_t comm,
			   const char *name);

struct group_record_options {
	uint32_t comm; /* record */
	uint32_t side;
	uint64_t plan_hash;
};

/* A new one, without shards yet. Charged already: freeing refunds. -ENOSPC,
 * -ENOMEM; then nothing changed. */
int group_record_make(struct broker *broker, const struct group_spec *spec,
		      const struct group_record_options *options, uint32_t *ret,
		      struct error *err);

/* Keep these slots as its shards of that side, and what they were no more. */
void group_record_set_slots(struct broker *broker, uint32_t record,
			    uint32_t side, const uint32_t *slots, uint32_t n);

/* The record and what it keeps go, out of its communicator's chain. The caller
 * commits. */
void group_record_free(struct broker *broker, uint32_t record);

/* After a restart: charge what is kept. */
int group_record_adopt(struct broker *broker, uint32_t record,
		       struct error *err);
