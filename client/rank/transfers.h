/*
 * Messages of this rank to others and from them, by mail (shm/mail.h).
 *
 * Sends to one rank go in the order in which they were begun. A message goes to
 * the first receive that takes its tag, and its rank or any. If there is none
 * while another message of the same rank is waited for, it is put aside in
 * memory of this process. Whatever is waited for, all transfers that were begun
 * go on.
 */
#pragma once
#include "client/rank/host_exchange.h"
#include "shm/mail.h"
#include <stdbool.h>
#include <stdint.h>

struct fsdp_comm;
struct fsdp_transfer;

/* Of a communicator. */
struct transfers {
	struct mail_counts counts;
	/* In the order in which they were begun; owned. */
	struct fsdp_transfer *begun;
	struct fsdp_transfer *aside; /* whole, without a receive; owned */
	/* From each rank: the message that is coming. One that is to be put
	 * aside is owned. */
	struct fsdp_transfer *coming[FSDP_MAX_RANKS];
	int64_t moved_ns; /* when something did last */
};

/* Free all; the communicator is left. */
void transfers_deinit(struct fsdp_comm *comm);
