/*
 * These functions name the calls of exchange.h as other ranks see them
 * (shm/boxes.h), and compare two of them. They do not trust what another rank
 * wrote.
 */
#pragma once
#include "shm/boxes.h"
#include <stdint.h>

struct error;
struct fsdp_comm;

/* Returns a name like "an all-reduce"; "an unknown call" for other numbers. */
const char *box_call_name(uint32_t kind);

/* Does the call of that rank match this rank's call, which takes `size` bytes
 * from it? Otherwise returns -EINVAL. */
int box_call_compare(const struct fsdp_comm *comm, const struct box_call *own,
		     uint32_t rank, const struct box_call *theirs,
		     uint64_t size, struct error *err);
