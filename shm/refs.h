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
 *                                                          :  release, ask
 *   release:  delta -= 1;  word is LIMBO or WRITING ?  set pending bit, ring
 *   reclaim:  word = (generation, LIMBO);  any granted + delta > 0 ?  stay
 *                                                          :  free
 *
 * Why that is enough: client and broker each write one word and then read the
 * other's, both seq_cst, so in the single order of all four accesses the second
 * of the two sees the first (the argument of hazard pointers and of Dekker's
 * lock). If the acquire is second, it sees LIMBO and backs out; if the reclaim
 * is second, it counts the hold and leaves the slot in limbo. Backing out *is*
 * a release and rings like one: the reclaim may have counted the short-lived
 * hold, and nothing else would make the broker look again. A release that sees
 * LIMBO rings whatever the generation and the count are: threads may share the
 * entry, and no thread can know whether it is the last. A release that sees
 * WRITING may belong to a writer that gives up, which nothing else would tell
 * the broker. tests/model checks this with crashes of both sides.
 *
 * If a device still reads when its process releases a tensor, the release first
 * stores the fence, which is the value that one of the session's timelines will
 * have when the stream has passed the release; then it lowers delta. A process
 * that sees a count of 0 sees the fence, and reclaims only when the timeline
 * has reached it. Releases from several streams share one fence: the stream of
 * the later one waits for the fence of the earlier one.
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
	_Atomic uint16_t timeline; /* the timeline of `fence`; 0: none */
	_Atomic uint16_t used;     /* era of the last acquire, plain store */
	_Atomic uint64_t fence;
};

/* The memory that the first use of an entry costs: a page of this machine. */
uint64_t refs_page_size(void);

/* The number of pages of the entries: at most, and on this machine. */
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

/* A new file, made and mapped by the broker; the client gets the descriptor. */
int refs_create(struct refs *ret, struct error *err);

enum refs_side { REFS_BROKER, REFS_CLIENT };

/*
 * Map an existing file: checks seals, size and header. The client's mapping is
 * MADV_DONTFORK. Consumes `fd`, also on failure.
 */
int refs_open(struct refs *ret, int fd, enum refs_side side, struct error *err);
void refs_close(struct refs *refs);

/* Client: add one hold of a slot that is held already. */
static inline void refs_hold(struct refs *refs, uint32_t slot)
{
	atomic_fetch_add_explicit(&refs->entries[slot].delta, 1,
				  memory_order_seq_cst);
}

/*
 * Client: drop one hold. True: the slot is in limbo (or still written), its
 * pending bit is now set and the caller must ring the doorbell.
 */
bool refs_release(struct refs *refs, const struct table *table, uint32_t slot);

enum refs_outcome {
	REFS_HELD = 0,
	REFS_STALE = 1,      /* not that generation, or not published: ask */
	REFS_STALE_RING = 2, /* the same, and ring the doorbell */
};

/* Client: hold slot `slot` if it still has `generation` and is published. */
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

/* Broker: the client's part of the count. It is input and not trusted. */
static inline int32_t refs_delta(const struct refs *refs, uint32_t slot)
{
	return atomic_load_explicit(&refs->entries[slot].delta,
				    memory_order_seq_cst);
}

/*
 * Broker, after refs_delta(): the timeline and the value at which the device
 * work of earlier holds ends. 0: there is none. It is input and not trusted.
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

/* A copy of neighbouring entries of one file; {0}: of none yet. */
#define REFS_PEEKED 32
struct refs_peek {
	const struct refs *refs;
	uint32_t first;
	struct refs_entry entries[REFS_PEEKED];
};

/* refs_delta() for display: it allocates no page of the file, and is not
 * ordered with other accesses. 0 if it fails. An entry that is not in `peek`
 * takes a system call, which copies its neighbours, too. */
int32_t refs_peek_delta(const struct refs *refs, uint32_t slot,
			struct refs_peek *peek);

static inline uint16_t refs_used(const struct refs *refs, uint32_t slot)
{
	return atomic_load_explicit(&refs->entries[slot].used,
				    memory_order_relaxed);
}

/*
 * Broker: take up to `max` pending slots, and clear their bits before they are
 * returned. Returns their number; if that is `max`, call again later.
 */
uint32_t refs_take_pending(struct refs *refs, uint32_t *ret_slots,
			   uint32_t max);
