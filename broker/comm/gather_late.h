/*
 * Why a gather waits, and which rank is late.
 */
#pragma once

struct comm;
struct error;
struct gather;

/* Set `err` to -ETIMEDOUT, and describe why the gather is not done. */
int gather_refuse_wait(const struct gather *gather, struct error *err);

/* Set `ret` to the message for a rank that is too late for a gather
 * (calls_deadline()). */
void gathers_describe_late(const struct comm *comm, struct error *ret);
