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

/* Set `ret` to the message for a rank that is too late for a reduction
 * (calls_deadline()). */
void reductions_describe_late(const struct comm *comm, struct error *ret);
