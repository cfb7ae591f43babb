/*
 * Holdings: a session as the tensors see it, with what it holds and is charged
 * for.
 *
 * A session (session/session.h) embeds one. After a restart and before the
 * client reconnects, a session has no mapped ref-counter file, and counts as
 * holding everything that it was granted (grant.h).
 */
#pragma once
#include "broker/catalog/catalog.h"
#include "broker/tensor/access.h"
#include "broker/tensor/chore.h"
#include "shm/refs.h"
#include "shm/timeline.h"
#include <stdint.h>

struct account;
struct store;

struct holdings {
	struct store *store;
	uint32_t index; /* catalog record, and index in store.holdings */
	struct credentials credentials;
	struct account *account;
	struct refs refs; /* REFS_NULL until the client has reconnected */
	struct timelines timelines; /* TIMELINES_NULL until requested */
	int timelines_readonly_fd;  /* owned; -1 until first requested */
	/* runs while the session has a lease (lease.h) */
	struct chore lease;
	/* Called when the lease has ended, so the session has all grants.
	 * Called between transactions. */
	void (*on_granted)(struct holdings *holdings);
	/* One bit for each page of the ref-counter file in which the session
	 * has had a grant. Its uid is charged for these pages until the session
	 * ends. */
	uint64_t ref_pages[REFS_MAX_PAGES / 64];
	uint32_t n_ref_pages;
	/* Bytes of the blocks that the session made, which count against its
	 * budget. */
	uint64_t n_bytes;
	/* After a reconnect, the next grant whose slot is updated; 0: none. */
	uint32_t grant_hand;
	/* One bit for each record of a channel in which the session has a
	 * place, or has had one. */
	uint64_t channels[CATALOG_CHANNELS / 64 + 1];
	/* The last block that shared_chunk_end_session() has finished. */
	uint32_t shared_hand;
};

struct session_record *holdings_record(const struct holdings *holdings);
