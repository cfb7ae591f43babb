/*
 * What a gather waits for, and which rank is late.
 */
#pragma once
#include <stdint.h>

struct comm;
struct error;
struct gather;

/* The gather is not done: -ETIMEDOUT, with what it waits for. */
int gather_refuse_wait(const struct gather *gather, struct error *err);

/* When a rank is too late for a gather (UINT64_MAX: never), and the message for
 * that case. */
uint64_t gathers_deadline(const struct comm *comm);
void gathers_describe_late(const struct comm *comm, struct error *ret);
