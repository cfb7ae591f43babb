/*
 * Why a gather waits, and which rank is late.
 */
#pragma once
#include <stdint.h>

struct comm;
struct error;
struct gather;

/* Set `err` to -ETIMEDOUT, and describe why the gather is not done. */
int gather_refuse_wait(const struct gather *gather, struct error *err);

/* gathers_deadline() returns the time at which a rank is too late for a gather
 * (UINT64_MAX: never). gathers_describe_late() sets `ret` to the message for
 * that case. */
uint64_t gathers_deadline(const struct comm *comm);
void gathers_describe_late(const struct comm *comm, struct error *ret);
