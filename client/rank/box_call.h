/*
 * The calls of exchange.h as other ranks see them (shm/boxes.h): their names,
 * and comparisons. Values that another rank wrote are not trusted.
 */
#pragma once
#include "shm/boxes.h"
#include <stdint.h>

struct error;
struct fsdp_comm;

/* Return a name like "an all-reduce", or "an unknown call" for other
 * numbers. */
const char *box_call_name(uint32_t kind);

/* Check that the call of that rank matches this rank's call, which takes `size`
 * bytes from it. Returns -EINVAL if not. */
int box_call_compare(const struct fsdp_comm *comm, const struct box_call *own,
		     uint32_t rank, const struct box_call *theirs,
		     uint64_t size, struct error *err);
