/*
 * What a reduction waits for, and which rank is late.
 */
#pragma once
#include <stdint.h>

struct comm;
struct error;
struct group;

/* The reduction is pending: -ETIMEDOUT, with what it waits for. */
int reduction_refuse_wait(const struct group *group, uint64_t sequence,
			  struct error *err);

/* When a rank is too late for a reduction (UINT64_MAX: never), and the message
 * for that case. */
uint64_t reductions_deadline(const struct comm *comm);
void reductions_describe_late(const struct comm *comm, struct error *ret);
