/*
 * Why a reduction waits, and which rank is late.
 */
#pragma once
#include <stdint.h>

struct comm;
struct error;
struct group;

/* Set `err` to -ETIMEDOUT, and describe why the reduction is not done. */
int reduction_refuse_wait(const struct group *group, uint64_t sequence,
			  struct error *err);

/* reductions_deadline() returns the time at which a rank is too late for a
 * reduction (UINT64_MAX: never). reductions_describe_late() sets `ret` to the
 * message for that case. */
uint64_t reductions_deadline(const struct comm *comm);
void reductions_describe_late(const struct comm *comm, struct error *ret);
