/*
 * Ref-counter files: the holds of a client, counted without a system call.
 *
 * There is one memfd per session, with one 16-byte entry per slot. The broker
 * maps the entries read-only. The number of a session's holds of a slot is
 *
 *     holds = granted (by the broker, in its catalog)
 *           + delta (of the client, in this file)
 *
 * and each side writes only its own part, so that a crash of either leaves a
 * correct sum.
 *
 *   acquire:  delta += 1;  word == (generation, PUBLISHED) ?  held
 *                                                  :  release, request
 *   release:  delta -= 1;  word is LIMBO or WRITING ?  set pending bit, ring
 *   reclaim:  word = (generation, LIMBO);  any granted + delta > 0 ?  stay
 *                                                          :  free
 *
 * Client and broker each write one word and then read the other's, all seq_cst,
 * so in the single order of the four accesses the second of the two sees the
 * write of the first (as with hazard pointers and Dekker's lock). If the
 * acquire is second, it sees LIMBO and undoes its hold; if the reclaim is
 * second, it counts the hold and leaves the slot in limbo. To undo a hold *is*
 * a release, and rings like one: the reclaim may have counted the short hold,
 * and nothing else would make the broker check again. A release that sees LIMBO
 * rings for any generation and count, because threads may share the entry, and
 * no thread can know whether it is the last one. A release that sees WRITING
 * may be that of a writer that gives up, and nothing else would tell the
 * broker. tests/model checks this with crashes of both sides.
 *
 * If a device still reads a tensor when its process releases it, the release
 * first stores the fence, which is the value that one of the session's
 * timelines will have when the stream has passed the release, and then
 * decrements delta. A process that sees a count of 0 also sees the fence, and
 * reclaims the slot only when the timeline has reached it. Releases from
 * several streams share one fence: the stream of the later one waits for the
 * fence of the earlier one.
 *
 * LAYOUT (n = slots)
 *
 *   offset          size    meaning
 *        0          64      header: magic "FSDPREF1", version, n
 *     4096          n/512   summary: bit w set = word w of the bitmap is not 0
 *     8192          n/8     pending bitmap, one bit per slot
 *   192 KiB         16*n    entries {i32 delta, u16 timeline, u16 used,
 *                           u64 fence}
 *
 * The broker maps the first part (through the bitmap) writable, since it clears
 * bits, and the entries read-only. So the entries begin at a page boundary of
 * every machine (LAYOUT_PAGE_SIZE).
 */
#pragma once
#include "shm/table.h"
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct error;

#define REFS_SUMMARY_OFFSET 4096
#define REFS_BITMAP_OFFSET  8192
#define REFS_ENTRIES_OFFSET (192 << 10)

struct refs_entry {
	_Atomic int32_t delta;
	/* the timeline of `fence`; 0: there is no fence */
	_Atomic uint16_t timeline;
	/* era of the last acquire, set by a plain store */
	_Atomic uint16_t used;
	_Atomic uint64_t fence;
};

/* Returns the memory that the first use of an entry costs: one page of this
 * machine. */
uint64_t refs_page_size(void);

/* The maximum number of pages of the entries; refs_n_pages() returns that of
 * this machine. */
#define REFS_MAX_PAGES (TABLE_SLOTS * sizeof(struct refs_entry) / 4096)

static inline uint32_t refs_n_pages(void)
{
	return (uint32_t)(TABLE_SLOTS * sizeof(struct refs_entry) /
			  refs_page_size());
}

static inline uint32_t refs_page(uint32_t slot)
{
	return (uint32_t)(slot * sizeof(struct refs_entry) / refs_page_size());
}

struct refs {
	void *head; /* header, summary, bitmap; writable on both sides */
	_Atomic uint64_t *summary;
	_Atomic uint64_t *bitmap;
	struct refs_entry *entries; /* the broker's mapping is read-only */
	int fd;                     /* owned; -1 when closed */
	uint64_t inode;
};

#define REFS_NULL ((struct refs){.fd = -1})

/* Makes and maps a new file (broker). The client gets the descriptor. */
int refs_create(struct refs *ret, struct error *err);

enum refs_side { REFS_BROKER, REFS_CLIENT };

/*
 * Maps an existing file after checks of seals, size and header. The client's
 * mapping is MADV_DONTFORK. Consumes `fd`, also on failure.
 */
int refs_open(struct refs *ret, int fd, enum refs_side side, struct error *err);
void refs_close(struct refs *refs);

/* Client: adds one hold of a slot that it holds already. */
static inline void refs_hold(struct refs *refs, uint32_t slot)
{
	atomic_fetch_add_explicit(&refs->entries[slot].delta, 1,
				  memory_order_seq_cst);
}

/*
 * Client: drops one hold. Returns true if the slot is in limbo (or still being
 * written). Its pending bit is then set, and the caller must ring the doorbell.
 */
bool refs_release(struct refs *refs, const struct table *table, uint32_t slot);

enum refs_outcome {
	REFS_HELD = 0,
	/* another generation or not published: request it */
	REFS_STALE = 1,
	/* the same, and the caller must ring the doorbell */
	REFS_STALE_RING = 2,
};

/* Client: holds slot `slot` if it still has `generation` and is published. */
static inline enum refs_outcome refs_acquire(struct refs *refs,
					     const struct table *table,
					     uint32_t slot, uint64_t generation)
{
	struct refs_entry *entry = &refs->entries[slot];

	atomic_fetch_add_explicit(&entry->delta, 1, memory_order_seq_cst);
	if (__builtin_expect(table_load(table, slot) ==
				     table_word(generation, SLOT_PUBLISHED),
			     1)) {
		atomic_store_explicit(
			&entry->used,
			(uint16_t)atomic_load_explicit(&table->header->era,
						       memory_order_relaxed),
			memory_order_relaxed);
		return REFS_HELD;
	}
	return refs_release(refs, table, slot) ? REFS_STALE_RING : REFS_STALE;
}

/* Broker: returns the client's part of the count. It is input and not
 * trusted. */
static inline int32_t refs_delta(const struct refs *refs, uint32_t slot)
{
	return atomic_load_explicit(&refs->entries[slot].delta,
				    memory_order_seq_cst);
}

/*
 * Broker, after refs_delta(): returns the timeline, and the value at which the
 * device work of earlier holds ends, or 0 if there is no such work. It is input
 * and not trusted.
 */
static inline uint32_t refs_fence(const struct refs *refs, uint32_t slot,
				  uint64_t *ret_value)
{
	/* relaxed: the earlier load of delta acquired both. */
	*ret_value = atomic_load_explicit(&refs->entries[slot].fence,
					  memory_order_relaxed);
	return atomic_load_explicit(&refs->entries[slot].timeline,
				    memory_order_relaxed);
}

/* A copy of neighbouring entries of one file. {0} has no entries yet. */
#define REFS_PEEKED 32
struct refs_peek {
	const struct refs *refs;
	uint32_t first;
	struct refs_entry entries[REFS_PEEKED];
};

/* Does the same as refs_delta() for display: it allocates no page of the file,
 * and is not ordered with other accesses. Returns 0 if it fails. An entry that
 * is not in `peek` takes a system call, which copies its neighbours, too. */
int32_t refs_peek_delta(const struct refs *refs, uint32_t slot,
			struct refs_peek *peek);

static inline uint16_t refs_used(const struct refs *refs, uint32_t slot)
{
	return atomic_load_explicit(&refs->entries[slot].used,
				    memory_order_relaxed);
}

/*
 * Broker: takes up to `max` pending slots, and clears their bits before it
 * returns. Returns their number; if that is `max`, call it again later.
 */
uint32_t refs_take_pending(struct refs *refs, uint32_t *ret_slots,
			   uint32_t max);
