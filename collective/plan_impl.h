/*
 * What plan.c and plan_hash.c share: nobody else needs it.
 */
#pragma once

struct error;
struct plan;
struct plan_param;

/* Set the hash of a plan whose other fields are all set. -ENOMEM. */
int plan_set_hash(struct plan *plan, const struct plan_param *params,
		  struct error *err);
