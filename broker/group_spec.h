/*
 * What a group was registered as: parameters and policy, in memory and in the
 * catalog.
 *
 * LAYOUT of group_record.spec_blob: the group's name and a 0, then an encoded
 * group_request. So a name is found without decoding.
 */
#pragma once
#include "broker/collective/plan.h"
#include "proto/message.h"
#include <stdint.h>

struct broker;
struct error;

struct group_spec {
	struct request request;    /* owned */
	struct plan_param *params; /* owned; point into `request` */
	struct plan_policy policy;
};

#define GROUP_SPEC_NULL ((struct group_spec){0})

/* A copy of its own. */
int group_spec_copy(const struct group_request *request, struct group_spec *ret,
		    struct error *err);

/* Of a request that outlives it. */
int group_spec_borrow(const struct group_request *request,
		      struct group_spec *ret, struct error *err);

void group_spec_deinit(struct group_spec *spec);

/* The mesh is the communicator's. */
struct group_mesh {
	uint32_t n_shards, n_replicas;
	bool is_per_rank; /* on devices */
};
int group_spec_plan(const struct group_spec *spec, struct group_mesh mesh,
		    struct plan *ret, struct error *err);

/* As plan_compare(). */
int group_spec_compare(const struct group_spec *mine,
		       const struct group_spec *theirs, const char *whose,
		       struct error *err);

/* The bytes of the blob; the caller frees. -E2BIG: more than a blob can have.
 */
int group_spec_encode(const struct group_spec *spec, uint8_t **ret_bytes,
		      size_t *ret_size, struct error *err);

/* What a record says. */
const char *group_spec_name(const struct broker *broker, uint32_t record);
int group_spec_read(const struct broker *broker, uint32_t record,
		    struct group_spec *ret, struct error *err);
