/*
 * Makes and maps the file of the state table.
 *
 * The constant part of the header is read through the descriptor before the
 * file is mapped, so that a copy is checked, which no process can change.
 */
#include "shm/table.h"
#include "proto/error.h"
#include "shm/memfd.h"
#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define TABLE_MAGIC UINT64_C(0x3142415450445346) /* "FSDPTAB1" */
/* If this changes, CATALOG_LAYOUT_VERSION must change, too, because a broker
 * takes over both files or none. */
#define TABLE_VERSION      2
#define TABLE_WORDS_OFFSET LAYOUT_PAGE_SIZE
#define TABLE_SIZE         (TABLE_WORDS_OFFSET + UINT64_C(8) * TABLE_SLOTS)

_Static_assert(offsetof(struct table_header, magic) == 0, "layout");
_Static_assert(offsetof(struct table_header, version) == 8, "layout");
_Static_assert(offsetof(struct table_header, n_slots) == 12, "layout");
_Static_assert(offsetof(struct table_header, epoch) == 16, "layout");
_Static_assert(offsetof(struct table_header, chunks_retired) == 24, "layout");
_Static_assert(offsetof(struct table_header, era) == 32, "layout");
_Static_assert(offsetof(struct table_header, chunks) == 64, "layout");
_Static_assert(offsetof(struct table_header, verdicts) == 8256, "layout");
_Static_assert(sizeof(struct table_header) == 40960, "layout");
_Static_assert(sizeof(struct table_header) <= TABLE_WORDS_OFFSET, "layout");
_Static_assert(TABLE_SIZE % LAYOUT_PAGE_SIZE == 0, "whole pages");
_Static_assert(sizeof(_Atomic uint64_t) == 8, "a word is 8 bytes");
_Static_assert(ATOMIC_LLONG_LOCK_FREE == 2, "words are shared by processes");
_Static_assert(SLOT_LIMBO < SLOT_TAINTED, "states fit beside the taint");
_Static_assert(SLOT_TAINTED < 1 << SLOT_STATE_BITS, "both fit their bits");

/* The part of the header that never changes. */
struct identity {
	uint64_t magic;
	uint32_t version;
	uint32_t n_slots;
};

_Static_assert(sizeof(struct identity) == offsetof(struct table_header, epoch),
	       "the identity is the start of the header");

static int map(struct table *table, bool is_writable, struct error *err)
{
	void *at;
	int r;

	r = memfd_map(table->fd, TABLE_SIZE, is_writable, &at, err);
	if (r < 0)
		return error_wrap(err, r, "cannot use the state table");
	table->header = at;
	table->words = (_Atomic uint64_t *)((uint8_t *)at + TABLE_WORDS_OFFSET);
	return 0;
}

int table_create(struct table *ret, struct error *err)
{
	struct table table = TABLE_NULL;
	int r;

	r = memfd_create_sealed("fsdp-table", TABLE_SIZE, MEMFD_SEAL_CLOSED,
				&table.fd, err);
	if (r < 0)
		return r;
	r = map(&table, true, err);
	if (r < 0) {
		table_close(&table);
		return r;
	}
	table.header->magic = TABLE_MAGIC;
	table.header->version = TABLE_VERSION;
	table.header->n_slots = TABLE_SLOTS;
	*ret = table;
	return 0;
}

static int check(int fd, struct error *err)
{
	struct identity identity = {0};
	ssize_t n;
	int r;

	r = memfd_check(fd, TABLE_SIZE, NULL, err);
	if (r < 0)
		return error_wrap(err, r, "cannot use the state table");
	n = pread(fd, &identity, sizeof(identity), 0);
	if (n < 0)
		return error_errno(err, -errno, "cannot read the state table");
	if (n != sizeof(identity) || identity.magic != TABLE_MAGIC)
		return error_set(err, -EPROTO, "the file is not a state table");
	if (identity.version != TABLE_VERSION ||
	    identity.n_slots != TABLE_SLOTS)
		return error_set(
			err, -EPROTO,
			"the state table has layout %u and %u slots; this "
			"program knows layout %d and %u slots: install broker "
			"and library of the same version",
			identity.version, identity.n_slots, TABLE_VERSION,
			TABLE_SLOTS);
	return 0;
}

int table_open(struct table *ret, int fd, bool is_writable, struct error *err)
{
	struct table table = {.fd = fd};
	int r;

	r = check(fd, err);
	if (r == 0)
		r = map(&table, is_writable, err);
	if (r < 0) {
		table_close(&table);
		return r;
	}
	*ret = table;
	return 0;
}

void table_close(struct table *table)
{
	if (table->header)
		munmap(table->header, TABLE_SIZE);
	if (table->fd >= 0)
		close(table->fd);
	*table = TABLE_NULL;
}
