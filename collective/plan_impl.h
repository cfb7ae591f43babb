/*
 * This header is shared by plan.c and plan_hash.c only.
 */
#pragma once

struct error;
struct plan;
struct plan_param;

/* Sets the hash of a plan whose other fields are all set. Can return
 * -ENOMEM. */
int plan_set_hash(struct plan *plan, const struct plan_param *params,
		  struct error *err);
