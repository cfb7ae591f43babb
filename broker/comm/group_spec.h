/*
 * The registration of a group: parameters and policy, in memory and in the
 * catalog.
 *
 * LAYOUT of group_record.spec_blob: the group's name and a 0, then an encoded
 * group_request. A name is thus found without decoding.
 */
#pragma once
#include "collective/plan.h"
#include "proto/message.h"
#include <stdint.h>

struct comms;
struct error;

struct group_spec {
	struct request request;    /* owned */
	struct plan_param *params; /* owned; point into `request` */
	struct plan_policy policy;
};

#define GROUP_SPEC_NULL ((struct group_spec){0})

/* Make an independent copy of a request. */
int group_spec_copy(const struct group_request *request, struct group_spec *ret,
		    struct error *err);

/* Make a spec that refers to a request, which must outlive it. */
int group_spec_borrow(const struct group_request *request,
		      struct group_spec *ret, struct error *err);

void group_spec_deinit(struct group_spec *spec);

/* The mesh of a communicator. group_spec_plan() makes the plan of a spec for
 * it. */
struct group_mesh {
	uint32_t n_shards, n_replicas;
	bool is_per_rank; /* true on devices */
};
int group_spec_plan(const struct group_spec *spec, struct group_mesh mesh,
		    struct plan *ret, struct error *err);

/* Compare two specs. Returns the result of plan_compare(). */
int group_spec_compare(const struct group_spec *mine,
		       const struct group_spec *theirs, const char *whose,
		       struct error *err);

/* Encode the blob, which the caller frees. Returns -E2BIG if it is larger than
 * a blob may be. */
int group_spec_encode(const struct group_spec *spec, uint8_t **ret_bytes,
		      size_t *ret_size, struct error *err);

/* Read the name, or the spec, of a record. */
const char *group_spec_name(const struct comms *comms, uint32_t record);
int group_spec_read(const struct comms *comms, uint32_t record,
		    struct group_spec *ret, struct error *err);
