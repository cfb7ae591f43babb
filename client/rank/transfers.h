/*
 * Transfers: messages between this rank and others, which use the mail of the
 * board (shm/mail.h).
 *
 * Sends to one rank are done in the order in which they were begun. A message
 * goes to the first receive that accepts its tag and its rank. If there is none
 * while another message of the same rank is waited for, it is put aside in
 * memory of this process. During every wait, all transfers that were begun
 * continue.
 */
#pragma once
#include "client/rank/host_exchange.h"
#include "shm/mail.h"
#include <stdbool.h>
#include <stdint.h>

struct fsdp_comm;
struct fsdp_transfer;

/* messages that were put aside */
struct waiting {
	uint32_t n;
	uint64_t size;
};

/* the transfers of one communicator */
struct transfers {
	struct mail_counts counts;
	/* in the order in which they were begun; owned */
	struct fsdp_transfer *begun;
	struct fsdp_transfer *aside; /* complete, without a receive; owned */
	/* The message that is coming from each rank. It is owned if it is put
	 * aside. */
	struct fsdp_transfer *coming[FSDP_MAX_RANKS];
	struct waiting waiting[FSDP_MAX_RANKS]; /* of each rank */
	int64_t moved_ns;                       /* when a transfer last moved */
};

/* Free all transfers, after this rank has left the communicator. */
void transfers_deinit(struct fsdp_comm *comm);
