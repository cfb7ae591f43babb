/*
 * The calls of exchange.h as other ranks see them (shm/boxes.h): their names,
 * and whether two fit together. What another rank wrote is not trusted.
 */
#pragma once
#include "shm/boxes.h"
#include <stdint.h>

struct error;
struct fsdp_comm;

/* "an all-reduce"; "an unknown call" */
const char *box_call_name(uint32_t kind);

/* Does the call of that rank fit this one's, which takes `size` bytes of it?
 * -EINVAL. */
int box_call_compare(const struct fsdp_comm *comm, const struct box_call *own,
		     uint32_t rank, const struct box_call *theirs,
		     uint64_t size, struct error *err);
