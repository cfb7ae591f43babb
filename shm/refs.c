/*
 * Makes and maps ref-counter files, and maintains the pending bitmap.
 *
 * The bitmap has two levels. A client first sets the bit of the slot and then
 * the bit of that word in the summary. The broker first clears the summary and
 * then the words. So if the broker misses a bit in a word, its summary bit (and
 * its ring) will come later. A summary bit whose word is 0 costs only one read.
 *
 * The client can write any value into this file, so no value is trusted or used
 * as an index. The position of a bit is always a valid slot.
 */
#include "shm/refs.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define REFS_MAGIC      UINT64_C(0x3146455250445346) /* "FSDPREF1" */
#define REFS_VERSION    2
#define N_WORDS         (TABLE_SLOTS / 64)
#define N_SUMMARY_WORDS (N_WORDS / 64)
#define HEAD_SIZE       ((uint64_t)REFS_ENTRIES_OFFSET)
#define ENTRIES_SIZE    (sizeof(struct refs_entry) * (uint64_t)TABLE_SLOTS)
#define REFS_SIZE       (HEAD_SIZE + ENTRIES_SIZE)

struct refs_header {
	uint64_t magic;
	uint32_t version;
	uint32_t n_slots;
	uint8_t reserved[48];
};

_Static_assert(offsetof(struct refs_header, magic) == 0, "layout");
_Static_assert(offsetof(struct refs_header, version) == 8, "layout");
_Static_assert(offsetof(struct refs_header, n_slots) == 12, "layout");
_Static_assert(sizeof(struct refs_header) == 64, "layout");
_Static_assert(offsetof(struct refs_entry, delta) == 0, "layout");
_Static_assert(offsetof(struct refs_entry, timeline) == 4, "layout");
_Static_assert(offsetof(struct refs_entry, used) == 6, "layout");
_Static_assert(offsetof(struct refs_entry, fence) == 8, "layout");
_Static_assert(sizeof(struct refs_entry) == 16, "layout");
_Static_assert(TABLE_SLOTS % (64 * 64) == 0, "every bit is a slot");
_Static_assert(TABLE_SLOTS % REFS_PEEKED == 0, "every copy is whole");
_Static_assert(REFS_SUMMARY_OFFSET + TABLE_SLOTS / 512 <= REFS_BITMAP_OFFSET,
	       "the summary fits before the bitmap");
_Static_assert(REFS_ENTRIES_OFFSET ==
		       LAYOUT_PAGE_UP(REFS_BITMAP_OFFSET + TABLE_SLOTS / 8),
	       "the entries can be mapped alone");
_Static_assert(REFS_SIZE % LAYOUT_PAGE_SIZE == 0, "whole pages");
_Static_assert(ATOMIC_INT_LOCK_FREE == 2, "counts are shared by processes");

uint64_t refs_page_size(void)
{
	uint64_t size = (uint64_t)sysconf(_SC_PAGESIZE);

	assert(size >= 4096 && size <= LAYOUT_PAGE_SIZE);
	return size;
}

static void set_pointers(struct refs *refs, void *head, void *entries)
{
	refs->head = head;
	refs->summary =
		(_Atomic uint64_t *)((uint8_t *)head + REFS_SUMMARY_OFFSET);
	refs->bitmap =
		(_Atomic uint64_t *)((uint8_t *)head + REFS_BITMAP_OFFSET);
	refs->entries = entries;
}

static void *map_part(int fd, uint64_t offset, uint64_t size, int protection)
{
	int r = failpoint_fail("memfd.map");
	void *at;

	if (r < 0) {
		errno = -r;
		return MAP_FAILED;
	}
	at = mmap(NULL, size, protection, MAP_SHARED, fd, (off_t)offset);
	/* keep it out of core dumps, which would read, and so fill, every
	 * hole */
	if (at != MAP_FAILED)
		(void)madvise(at, size, MADV_DONTDUMP);
	return at;
}

/*
 * Maps ordinary pages, unlike memfd_map(). Each session has such a file, and it
 * is sparse, so huge pages would cost 2 MiB instead of 4 KiB.
 */
static int map_broker(struct refs *refs, struct error *err)
{
	void *head, *entries;
	int r;

	head = map_part(refs->fd, 0, HEAD_SIZE, PROT_READ | PROT_WRITE);
	if (head == MAP_FAILED)
		return error_errno(err, -errno,
				   "cannot map a ref-counter file");
	entries = map_part(refs->fd, HEAD_SIZE, ENTRIES_SIZE, PROT_READ);
	if (entries == MAP_FAILED) {
		r = -errno;
		munmap(head, HEAD_SIZE);
		return error_errno(
			err, r, "cannot map the entries of a ref-counter file");
	}
	set_pointers(refs, head, entries);
	return 0;
}

/* The mapping is not inherited by forked children, because a child must not
 * count as its parent. */
static int map_client(struct refs *refs, struct error *err)
{
	void *head;
	int r;

	head = map_part(refs->fd, 0, REFS_SIZE, PROT_READ | PROT_WRITE);
	if (head == MAP_FAILED)
		return error_errno(err, -errno,
				   "cannot map the ref-counter file");
	if (madvise(head, REFS_SIZE, MADV_DONTFORK) < 0) {
		r = -errno;
		munmap(head, REFS_SIZE);
		return error_errno(
			err, r,
			"cannot keep the ref-counter file from forked "
			"processes");
	}
	set_pointers(refs, head, (uint8_t *)head + HEAD_SIZE);
	return 0;
}

int refs_create(struct refs *ret, struct error *err)
{
	struct refs refs = REFS_NULL;
	struct refs_header *header;
	int r;

	r = memfd_create_sealed("fsdp-refs", REFS_SIZE, MEMFD_SEAL_CLOSED,
				&refs.fd, err);
	if (r < 0)
		return r;
	r = memfd_check(refs.fd, REFS_SIZE, &refs.inode, err);
	if (r == 0)
		r = map_broker(&refs, err);
	if (r < 0) {
		refs_close(&refs);
		return r;
	}
	header = refs.head;
	header->magic = REFS_MAGIC;
	header->version = REFS_VERSION;
	header->n_slots = TABLE_SLOTS;
	*ret = refs;
	return 0;
}

/* Checks a copy of the header, because another process can change the file. */
static int check_header(int fd, struct error *err)
{
	struct refs_header header = {0};
	ssize_t n;

	n = pread(fd, &header, sizeof(header), 0);
	if (n < 0)
		return error_errno(err, -errno,
				   "cannot read a ref-counter file");
	if (n != sizeof(header) || header.magic != REFS_MAGIC)
		return error_set(err, -EPROTO,
				 "the file is not a ref-counter file");
	if (header.version != REFS_VERSION || header.n_slots != TABLE_SLOTS)
		return error_set(
			err, -EPROTO,
			"the ref-counter file has layout %u and %u slots; this "
			"program knows layout %d and %u slots: install broker "
			"and library of the same version",
			header.version, header.n_slots, REFS_VERSION,
			TABLE_SLOTS);
	return 0;
}

static int check(int fd, uint64_t *ret_inode, struct error *err)
{
	int r, seals;

	r = memfd_check(fd, REFS_SIZE, ret_inode, err);
	if (r < 0)
		return error_wrap(err, r, "cannot use the ref-counter file");
	/* Our files have F_SEAL_SEAL, so that no process can add a seal against
	 * writes later. */
	seals = fcntl(fd, F_GET_SEALS);
	if (seals < 0 || !(seals & F_SEAL_SEAL))
		return error_set(err, -EPERM,
				 "the ref-counter file can still be sealed, so "
				 "fsdpd did not make it");
	return check_header(fd, err);
}

int refs_open(struct refs *ret, int fd, enum refs_side side, struct error *err)
{
	struct refs refs = {.fd = fd};
	int r;

	r = check(fd, &refs.inode, err);
	if (r == 0)
		r = side == REFS_BROKER ? map_broker(&refs, err)
					: map_client(&refs, err);
	if (r < 0) {
		refs_close(&refs);
		return r;
	}
	*ret = refs;
	return 0;
}

int32_t refs_peek_delta(const struct refs *refs, uint32_t slot,
			struct refs_peek *peek)
{
	uint32_t first = slot / REFS_PEEKED * REFS_PEEKED;
	off_t at = (off_t)(HEAD_SIZE + first * sizeof(struct refs_entry));

	if (peek->refs != refs || peek->first != first) {
		peek->refs = refs;
		peek->first = first;
		/* pread() of a hole allocates no page, but a load would */
		if (pread(refs->fd, peek->entries, sizeof(peek->entries), at) !=
		    sizeof(peek->entries))
			memset(peek->entries, 0, sizeof(peek->entries));
	}
	return atomic_load_explicit(&peek->entries[slot - first].delta,
				    memory_order_relaxed);
}

void refs_close(struct refs *refs)
{
	/* the single mapping of the client can be unmapped in the same two
	 * parts */
	if (refs->head)
		munmap(refs->head, HEAD_SIZE);
	if (refs->entries)
		munmap(refs->entries, ENTRIES_SIZE);
	if (refs->fd >= 0)
		close(refs->fd);
	*refs = REFS_NULL;
}

/* Sets bits of one bitmap word, and then its summary bit; the order matters. */
static void set_pending(struct refs *refs, uint32_t word, uint64_t bits)
{
	/* release: a process that takes the bit sees the count that led to
	 * it */
	atomic_fetch_or_explicit(&refs->bitmap[word], bits,
				 memory_order_release);
	/* release: a process that takes the summary bit sees the bits of the
	 * word */
	atomic_fetch_or_explicit(&refs->summary[word / 64],
				 UINT64_C(1) << word % 64,
				 memory_order_release);
}

bool refs_release(struct refs *refs, const struct table *table, uint32_t slot)
{
	/* seq_cst: this comes before the load of the word below, in the single
	 * order that also includes the store and the count of reclaim */
	atomic_fetch_sub_explicit(&refs->entries[slot].delta, 1,
				  memory_order_seq_cst);
	switch (table_word_state(table_load(table, slot))) {
	case SLOT_LIMBO:
	case SLOT_WRITING: /* it is released before it was published */
		break;
	case SLOT_FREE:
	case SLOT_PUBLISHED:
		return false;
	}
	set_pending(refs, slot / 64, UINT64_C(1) << slot % 64);
	return true;
}

/*
 * Takes at most `max` slots of one bitmap word and returns their number. The
 * bits of its other slots are set again.
 */
static uint32_t take_word(struct refs *refs, uint32_t word, uint32_t *ret_slots,
			  uint32_t max)
{
	uint64_t bits;
	uint32_t slot, n = 0;

	/* acquire: pairs with set_pending(), so the caller sees all that the
	 * client had counted when it set the bit */
	bits = atomic_exchange_explicit(&refs->bitmap[word], 0,
					memory_order_acquire);
	for (; bits != 0 && n < max; bits &= bits - 1) {
		slot = word * 64 + (uint32_t)__builtin_ctzll(bits);
		/* slot 0 does not exist, but a client may set its bit */
		if (slot != 0)
			ret_slots[n++] = slot;
	}
	if (bits != 0)
		set_pending(refs, word, bits);
	return n;
}

uint32_t refs_take_pending(struct refs *refs, uint32_t *ret_slots, uint32_t max)
{
	uint32_t i, word, n = 0;
	uint64_t bits;

	for (i = 0; i < N_SUMMARY_WORDS && n < max; i++) {
		/* relaxed: this is only a hint, because the ring that announces
		 * a bit comes through the kernel after the bit was set */
		if (atomic_load_explicit(&refs->summary[i],
					 memory_order_relaxed) == 0)
			continue;
		/* acquire: pairs with set_pending() */
		bits = atomic_exchange_explicit(&refs->summary[i], 0,
						memory_order_acquire);
		for (; bits != 0 && n < max; bits &= bits - 1) {
			word = i * 64 + (uint32_t)__builtin_ctzll(bits);
			n += take_word(refs, word, ret_slots + n, max - n);
		}
		/* release: the words of these bits were not read, but the next
		 * process that takes the bits must see what this one saw */
		if (bits != 0)
			atomic_fetch_or_explicit(&refs->summary[i], bits,
						 memory_order_release);
	}
	return n;
}
