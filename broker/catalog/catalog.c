/*
 * The catalog's file: its layout, and the undo journal.
 *
 * A journal entry contains the old bytes, padded to 8, followed by a trailer
 * with their offset: with the trailer last, the journal can be read from its
 * end, newest entry first. Undoing writes only to ranges that are in the
 * journal, so it can be repeated after a crash while undoing.
 *
 * LAYOUT
 *
 *   offset   size                        meaning
 *        0  64 KiB                       struct catalog_header
 *   64 KiB  48 MiB                       journal
 *    above   records, each kind from a   slots, blocks, grants, chunks,
 *            page of its own             sessions, tickets, bundles, prefixes,
 *                                        communicators, groups, fences,
 *                                        channels, runs
 *    above   4 bytes per bucket          hashes: name, grant, ticket, bundle,
 *                                        prefix
 *    above   64 GiB                      blobs
 */
#include "broker/catalog/catalog.h"
#include "proto/error.h"
#include "proto/failpoint.h"
#include "shm/memfd.h"
#include <assert.h>
#include <errno.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <unistd.h>

#define CATALOG_MAGIC UINT64_C(0x3154414350445346) /* "FSDPCAT1" */
#define MAX_ATTEMPTS  2

/* The journal's end goes back to the kernel in whole pages of any machine. */
#define PAGE_UP(x)     LAYOUT_PAGE_UP(x)
#define JOURNAL_OFFSET LAYOUT_PAGE_SIZE
#define JOURNAL_SIZE   (UINT64_C(48) << 20)
/* Memory that a rare large transaction took beyond this goes back to the
 * kernel. */
#define JOURNAL_KEPT (UINT64_C(1) << 20)
#define JOURNAL_END  (JOURNAL_OFFSET + JOURNAL_SIZE)

/* Record 0 is never used; slots and chunks are also places in the state
 * table. */
#define N_SLOTS    TABLE_SLOTS
#define N_BLOCKS   TABLE_SLOTS
#define N_GRANTS   (UINT64_C(4) << 20)
#define N_CHUNKS   TABLE_CHUNKS
#define N_SESSIONS (CATALOG_MAX_SESSIONS + 1)
#define N_TICKETS  (UINT64_C(256) << 10)
#define N_BUNDLES  UINT64_C(4096) /* CATALOG_BUNDLES */
#define N_PREFIXES (UINT64_C(64) << 10)
#define N_COMMS    ((UINT64_C(32) << 10) + 1)
#define N_GROUPS   ((UINT64_C(256) << 10) + 1)
#define N_FENCES   TABLE_SLOTS   /* one for each slot */
#define N_CHANNELS UINT64_C(129) /* CATALOG_CHANNELS */
#define N_RUNS     TABLE_RUNS    /* one for each verdict */

#define SLOTS_AT    JOURNAL_END
#define BLOCKS_AT   PAGE_UP(SLOTS_AT + N_SLOTS * sizeof(struct slot_record))
#define GRANTS_AT   PAGE_UP(BLOCKS_AT + N_BLOCKS * sizeof(struct block_record))
#define CHUNKS_AT   PAGE_UP(GRANTS_AT + N_GRANTS * sizeof(struct grant_record))
#define SESSIONS_AT PAGE_UP(CHUNKS_AT + N_CHUNKS * sizeof(struct chunk_record))
#define TICKETS_AT                                                             \
	PAGE_UP(SESSIONS_AT + N_SESSIONS * sizeof(struct session_record))
#define BUNDLES_AT                                                             \
	PAGE_UP(TICKETS_AT + N_TICKETS * sizeof(struct ticket_record))
#define PREFIXES_AT                                                            \
	PAGE_UP(BUNDLES_AT + N_BUNDLES * sizeof(struct bundle_record))
#define COMMS_AT                                                               \
	PAGE_UP(PREFIXES_AT + N_PREFIXES * sizeof(struct prefix_record))
#define GROUPS_AT PAGE_UP(COMMS_AT + N_COMMS * sizeof(struct comm_record))
#define FENCES_AT PAGE_UP(GROUPS_AT + N_GROUPS * sizeof(struct group_record))
#define CHANNELS_AT                                                            \
	PAGE_UP(FENCES_AT + N_FENCES * sizeof(struct ready_fence_record))
#define RUNS_AT                                                                \
	PAGE_UP(CHANNELS_AT + N_CHANNELS * sizeof(struct channel_record))
#define RECORDS_END PAGE_UP(RUNS_AT + N_RUNS * sizeof(struct run_record))

#define N_NAME_BUCKETS   (UINT64_C(1) << 20)
#define N_GRANT_BUCKETS  (UINT64_C(1) << 20)
#define N_TICKET_BUCKETS (UINT64_C(64) << 10)
#define N_BUNDLE_BUCKETS (UINT64_C(4) << 10)
#define N_PREFIX_BUCKETS (UINT64_C(16) << 10)

#define NAME_BUCKETS_AT   RECORDS_END
#define GRANT_BUCKETS_AT  (NAME_BUCKETS_AT + N_NAME_BUCKETS * 4)
#define TICKET_BUCKETS_AT (GRANT_BUCKETS_AT + N_GRANT_BUCKETS * 4)
#define BUNDLE_BUCKETS_AT (TICKET_BUCKETS_AT + N_TICKET_BUCKETS * 4)
#define PREFIX_BUCKETS_AT (BUNDLE_BUCKETS_AT + N_BUNDLE_BUCKETS * 4)

#define BLOBS_AT     PAGE_UP(PREFIX_BUCKETS_AT + N_PREFIX_BUCKETS * 4)
#define CATALOG_SIZE (BLOBS_AT + (UINT64_C(64) << 30))

/* If any of these changes, CATALOG_LAYOUT_VERSION must change, too. */
_Static_assert(sizeof(struct catalog_header) <= JOURNAL_OFFSET, "header");
_Static_assert(offsetof(struct catalog_header, layout_version) == 8, "header");
_Static_assert(offsetof(struct catalog_header, journal_size) == 16, "header");
_Static_assert(sizeof(struct slot_record) == 168, "slot");
_Static_assert(sizeof(struct block_record) == 40, "block");
_Static_assert(sizeof(struct grant_record) == 40, "grant");
_Static_assert(sizeof(struct chunk_record) == 80, "chunk");
_Static_assert(sizeof(struct session_record) == 1688, "session");
_Static_assert(sizeof(struct ticket_record) == 56, "ticket");
_Static_assert(sizeof(struct bundle_record) == 144, "bundle");
_Static_assert(sizeof(struct prefix_record) == 48, "prefix");
_Static_assert(sizeof(struct comm_record) == 1368, "communicator");
_Static_assert(sizeof(struct group_record) == 616, "group");
_Static_assert(sizeof(struct ready_fence_record) == 64, "ready fence");
_Static_assert(sizeof(struct channel_record) == 1336, "channel");
_Static_assert(sizeof(struct run_record) == 34560, "run");
_Static_assert(N_CHANNELS == CATALOG_CHANNELS, "channels");
_Static_assert(BLOBS_AT % LAYOUT_PAGE_SIZE == 0, "blobs");
_Static_assert(N_BUNDLES == CATALOG_BUNDLES, "bundles");

struct section {
	uint64_t at;
	uint32_t record_size;
	uint32_t n; /* the number of records, including record 0 */
	/* This field links the free records, and those of a chain of a hash. It
	 * is not the one that marks a record as free. */
	uint32_t next;
};

/* clang-format off */
#define SECTION(NAME, type, link_field)                                        \
	{ NAME##S_AT, sizeof(struct type), N_##NAME##S,                        \
	  offsetof(struct type, link_field) }

static const struct section sections[SECTION_N] = {
	[SECTION_SLOT] = SECTION(SLOT, slot_record, name_next),
	[SECTION_BLOCK] = SECTION(BLOCK, block_record, maker),
	[SECTION_GRANT] = SECTION(GRANT, grant_record, hash_next),
	[SECTION_CHUNK] = SECTION(CHUNK, chunk_record, n_blocks),
	[SECTION_SESSION] = SECTION(SESSION, session_record, first_bundle),
	[SECTION_TICKET] = SECTION(TICKET, ticket_record, hash_next),
	[SECTION_BUNDLE] = SECTION(BUNDLE, bundle_record, hash_next),
	[SECTION_PREFIX] = {
		PREFIXES_AT, sizeof(struct prefix_record), N_PREFIXES,
		offsetof(struct prefix_record, hash_next) },
	[SECTION_COMM] = SECTION(COMM, comm_record, n_groups),
	[SECTION_GROUP] = SECTION(GROUP, group_record, next),
	[SECTION_READY_FENCE] = SECTION(FENCE, ready_fence_record, session),
	[SECTION_CHANNEL] = SECTION(CHANNEL, channel_record, n_slots),
	[SECTION_RUN] = SECTION(RUN, run_record, comm),
};

static const struct {
	uint64_t at;
	uint64_t n; /* a power of two */
} hashes[HASH_N] = {
	[HASH_NAME] = { NAME_BUCKETS_AT, N_NAME_BUCKETS },
	[HASH_GRANT] = { GRANT_BUCKETS_AT, N_GRANT_BUCKETS },
	[HASH_TICKET] = { TICKET_BUCKETS_AT, N_TICKET_BUCKETS },
	[HASH_BUNDLE] = { BUNDLE_BUCKETS_AT, N_BUNDLE_BUCKETS },
	[HASH_PREFIX] = { PREFIX_BUCKETS_AT, N_PREFIX_BUCKETS },
};
/* clang-format on */

struct journal_trailer {
	uint64_t offset; /* where the bytes belong */
	uint64_t size;   /* without padding */
};

/* --- file ---------------------------------------------------------------- */

static int map(int fd, void **ret, struct error *err)
{
	void *base;
	int r = failpoint_fail("catalog.mmap");

	if (r < 0)
		return error_errno(err, r, "cannot map the catalog");
	base = mmap(NULL, CATALOG_SIZE, PROT_READ | PROT_WRITE,
		    MAP_SHARED | MAP_NORESERVE, fd, 0);
	if (base == MAP_FAILED)
		return error_errno(err, -errno, "cannot map the catalog");
	/* If shared memory gets huge pages by default, a sparse file costs 2
	 * MiB for every record that is touched. */
	(void)madvise(base, CATALOG_SIZE, MADV_NOHUGEPAGE);
	/* A core dump of the broker would be tens of gigabytes of holes. */
	(void)madvise(base, CATALOG_SIZE, MADV_DONTDUMP);
	*ret = base;
	return 0;
}

static int format(struct catalog_header *header, struct error *err)
{
	if (getrandom(&header->hash_seed, sizeof(header->hash_seed), 0) !=
	    (ssize_t)sizeof(header->hash_seed))
		return error_errno(err, -errno, "cannot get random bytes");
	header->layout_version = CATALOG_LAYOUT_VERSION;
	header->next_session_id = 1;
	header->next_bundle_id = 1;
	header->next_comm_id = 1;
	header->next_chunk_id = 1;
	header->blob_top = BLOBS_AT;
	header->magic = CATALOG_MAGIC;
	return 0;
}

void catalog_close(struct catalog *catalog)
{
	if (catalog->header)
		munmap(catalog->header, CATALOG_SIZE);
	if (catalog->fd >= 0)
		close(catalog->fd);
	*catalog = CATALOG_NULL;
}

int catalog_create(struct catalog *ret, struct error *err)
{
	struct catalog catalog = CATALOG_NULL;
	void *base;
	int fd, r;

	r = memfd_create_sealed("fsdpd-catalog", CATALOG_SIZE,
				MEMFD_SEAL_CLOSED, &fd, err);
	if (r < 0)
		return error_wrap(err, r, "cannot create the catalog");
	r = map(fd, &base, err);
	if (r < 0) {
		close(fd);
		return r;
	}
	catalog = (struct catalog){.header = base, .base = base, .fd = fd};
	r = format(catalog.header, err);
	if (r < 0) {
		catalog_close(&catalog);
		return r;
	}
	*ret = catalog;
	return 0;
}

/* --- journal ------------------------------------------------------------- */

static uint64_t pad(uint64_t size)
{
	return (size + 7) & ~UINT64_C(7);
}

/*
 * Stores the size, which makes the last entry valid, or with 0 discards all
 * entries. The fences keep the compiler from moving other stores across it. The
 * CPU does not matter, since a killed process leaves its stores in order.
 */
static void set_journal_size(struct catalog_header *header, uint64_t size)
{
	atomic_signal_fence(memory_order_seq_cst);
	*(volatile uint64_t *)&header->journal_size = size;
	atomic_signal_fence(memory_order_seq_cst);
}

/*
 * Returns whether the range was saved in the journal since the last commit, and
 * remembers that it is saved now. Only the oldest value counts when a
 * transaction is undone, but heads of lists and counts change with every item
 * of a batch.
 */
static bool is_saved(struct catalog *catalog, uint64_t offset, size_t size)
{
	struct catalog_saved *saved =
		&catalog->saved[(offset >> 2 ^ offset >> 12) &
				(CATALOG_SAVED - 1)];

	if (saved->transaction == catalog->n_commits + 1 &&
	    saved->offset == offset && saved->size >= size)
		return true;
	*saved = (struct catalog_saved){offset, size, catalog->n_commits + 1};
	return false;
}

void catalog_save(struct catalog *catalog, const void *at, size_t size)
{
	struct catalog_header *header = catalog->header;
	uint8_t *top = catalog->base + JOURNAL_OFFSET + header->journal_size;
	uint64_t offset = (uint64_t)((const uint8_t *)at - catalog->base);
	struct journal_trailer trailer = {offset, size};
	uint64_t entry_size = pad(size) + sizeof(trailer);

	assert(offset < CATALOG_SIZE && size <= CATALOG_SIZE - offset);
	assert(offset >= JOURNAL_END || offset + size <= JOURNAL_OFFSET);
	if (is_saved(catalog, offset, size))
		return;
	assert(entry_size <= JOURNAL_SIZE - header->journal_size);
	/* Most ranges are one number; for a constant size the compiler makes no
	 * call. */
	if (size == 4)
		memcpy(top, at, 4);
	else if (size == 8)
		memcpy(top, at, 8);
	else
		memcpy(top, at, size);
	memcpy(top + pad(size), &trailer, sizeof(trailer));
	set_journal_size(header, header->journal_size + entry_size);
}

void catalog_commit(struct catalog *catalog)
{
	uint64_t size = catalog->header->journal_size;

	failpoint("catalog.commit");
	set_journal_size(catalog->header, 0);
	catalog->n_commits++;
	if (size > JOURNAL_KEPT)
		(void)madvise(catalog->base + JOURNAL_OFFSET + JOURNAL_KEPT,
			      PAGE_UP(size - JOURNAL_KEPT), MADV_REMOVE);
	failpoint("catalog.committed");
}

size_t catalog_journal_room(const struct catalog *catalog)
{
	return JOURNAL_SIZE - catalog->header->journal_size;
}

/* --- adoption ------------------------------------------------------------ */

/* Finds the entry that ends at `end` (in the journal). Returns false if there
 * is no valid entry. */
static bool read_entry(const struct catalog_header *header, uint64_t end,
		       struct journal_trailer *ret_trailer, uint64_t *ret_start)
{
	const uint8_t *journal = (const uint8_t *)header + JOURNAL_OFFSET;
	struct journal_trailer trailer;
	uint64_t room;

	if (end < sizeof(trailer))
		return false;
	room = end - sizeof(trailer);
	memcpy(&trailer, journal + room, sizeof(trailer));
	if (trailer.size > room || pad(trailer.size) > room)
		return false;
	if (trailer.offset > CATALOG_SIZE ||
	    trailer.size > CATALOG_SIZE - trailer.offset)
		return false;
	if (trailer.offset < JOURNAL_END &&
	    trailer.offset + trailer.size > JOURNAL_OFFSET)
		return false;
	*ret_trailer = trailer;
	*ret_start = room - pad(trailer.size);
	return true;
}

static bool journal_is_sound(const struct catalog_header *header)
{
	struct journal_trailer trailer;
	uint64_t end = header->journal_size;

	if (end > JOURNAL_SIZE || end % 8)
		return false;
	while (end > 0) {
		if (!read_entry(header, end, &trailer, &end))
			return false;
	}
	return true;
}

static void undo(struct catalog_header *header)
{
	uint8_t *base = (uint8_t *)header;
	struct journal_trailer trailer;
	uint64_t end = header->journal_size;

	while (end > 0) {
		bool is_entry = read_entry(header, end, &trailer, &end);

		assert(is_entry);
		memcpy(base + trailer.offset, base + JOURNAL_OFFSET + end,
		       trailer.size);
		failpoint("catalog.undo");
	}
	set_journal_size(header, 0);
}

/* The size of the file is checked later, since another layout has another. */
static int check_layout(int fd, struct error *err)
{
	struct {
		uint64_t magic;
		uint32_t layout_version;
	} head;
	ssize_t n = pread(fd, &head, sizeof(head), 0);

	if (n != sizeof(head) || head.magic != CATALOG_MAGIC)
		return error_set(err, -EUCLEAN,
				 "the file is not a catalog of fsdpd");
	if (head.layout_version == CATALOG_LAYOUT_VERSION)
		return 0;
	return error_set(err, -EPROTO,
			 "the catalog has layout %u, but this version of fsdpd "
			 "reads only layout %u; start the earlier version, or "
			 "drop the memory by 'systemctl stop fsdpd.socket "
			 "fsdpd' (systemd 254 and later: also 'systemctl clean "
			 "--what=fdstore fsdpd')",
			 head.layout_version, CATALOG_LAYOUT_VERSION);
}

static int adopt(struct catalog_header *header, struct error *err)
{
	if (header->adoption_attempts >= MAX_ATTEMPTS)
		return error_set(err, -EUCLEAN,
				 "%u brokers have tried to adopt the catalog, "
				 "and each of them died",
				 header->adoption_attempts);
	/* The attempt is counted first, since the following steps may kill the
	 * broker. */
	*(volatile uint32_t *)&header->adoption_attempts += 1;
	failpoint("catalog.attempt");
	if (!journal_is_sound(header))
		return error_set(err, -EUCLEAN,
				 "the catalog's journal is damaged");
	undo(header);
	failpoint("catalog.undone");
	return 0;
}

int catalog_adopt(struct catalog *ret, int fd, struct error *err)
{
	struct error cause = ERROR_NULL;
	void *base;
	int r;

	r = check_layout(fd, err);
	if (r < 0)
		goto close_fd;
	r = memfd_check(fd, CATALOG_SIZE, NULL, &cause);
	if (r < 0) {
		r = error_set(err, -EUCLEAN, "the catalog is damaged: %s",
			      cause.msg);
		goto close_fd;
	}
	r = map(fd, &base, err);
	if (r < 0)
		goto close_fd;
	r = adopt(base, err);
	if (r < 0)
		goto unmap;
	*ret = (struct catalog){.header = base, .base = base, .fd = fd};
	return 0;
unmap:
	munmap(base, CATALOG_SIZE);
close_fd:
	close(fd);
	return r;
}

void catalog_put_off_adoption(struct catalog *catalog)
{
	*(volatile uint32_t *)&catalog->header->adoption_attempts -= 1;
}

void catalog_adopted(struct catalog *catalog)
{
	*(volatile uint32_t *)&catalog->header->adoption_attempts = 0;
}

/* --- records ------------------------------------------------------------- */

static void *record_at(const struct catalog *catalog,
		       enum catalog_section section, uint32_t index)
{
	const struct section *s = &sections[section];

	assert(index > 0 && index < s->n);
	return catalog->base + s->at + (uint64_t)index * s->record_size;
}

static uint32_t *next_of(void *record, enum catalog_section section)
{
	return (void *)((uint8_t *)record + sections[section].next);
}

/* Clears all fields except a slot's generation, which outlives the record. */
static void clear_record(void *record, enum catalog_section section)
{
	uint64_t generation = 0;

	if (section == SECTION_SLOT)
		generation = ((struct slot_record *)record)->generation;
	memset(record, 0, sections[section].record_size);
	if (section == SECTION_SLOT)
		((struct slot_record *)record)->generation = generation;
}

uint32_t catalog_alloc(struct catalog *catalog, enum catalog_section section)
{
	struct catalog_section_state *state =
		&catalog->header->sections[section];
	uint32_t index = state->first_free;
	void *record;

	if (!index && state->n_touched + 1 >= sections[section].n)
		return 0;
	catalog_save(catalog, state, sizeof(*state));
	if (!index)
		index = state->n_touched + 1;
	record = record_at(catalog, section, index);
	catalog_save(catalog, record, sections[section].record_size);
	if (index > state->n_touched)
		state->n_touched = index;
	else
		state->first_free = *next_of(record, section);
	state->n_live++;
	clear_record(record, section);
	return index;
}

void catalog_release(struct catalog *catalog, enum catalog_section section,
		     uint32_t index)
{
	struct catalog_section_state *state =
		&catalog->header->sections[section];
	void *record = record_at(catalog, section, index);

	assert(index <= state->n_touched && state->n_live > 0);
	catalog_save(catalog, state, sizeof(*state));
	catalog_save(catalog, record, sections[section].record_size);
	clear_record(record, section);
	*next_of(record, section) = state->first_free;
	state->first_free = index;
	state->n_live--;
}

uint32_t catalog_n_live(const struct catalog *catalog,
			enum catalog_section section)
{
	return catalog->header->sections[section].n_live;
}

uint32_t catalog_n_touched(const struct catalog *catalog,
			   enum catalog_section section)
{
	return catalog->header->sections[section].n_touched;
}

uint32_t catalog_capacity(enum catalog_section section)
{
	return sections[section].n - 1;
}

int catalog_check_room(const struct catalog *catalog,
		       enum catalog_section section, uint32_t n,
		       const char *what, struct error *err)
{
	uint32_t capacity = catalog_capacity(section);
	uint32_t used = catalog_n_live(catalog, section);

	if (n <= capacity - used)
		return 0;
	return error_set(
		err, -ENOSPC,
		"this node has %u of at most %u %s; %u more do not fit "
		"until some are released",
		used, capacity, what, n);
}

#define X(SECTION, noun)                                                       \
	struct noun##_record *catalog_##noun(const struct catalog *catalog,    \
					     uint32_t index)                   \
	{                                                                      \
		return record_at(catalog, SECTION, index);                     \
	}
CATALOG_RECORDS(X)
#undef X

/* --- lists, hashes ------------------------------------------------------- */

static struct link *link_at(const struct catalog *catalog,
			    enum catalog_section section, size_t link_offset,
			    uint32_t index)
{
	uint8_t *record = record_at(catalog, section, index);

	return (void *)(record + link_offset);
}

void catalog_list_append(struct catalog *catalog, struct list *list,
			 enum catalog_section section, size_t link_offset,
			 uint32_t index)
{
	struct link *link = link_at(catalog, section, link_offset, index);
	struct link *last;

	catalog_save(catalog, list, sizeof(*list));
	catalog_save(catalog, link, sizeof(*link));
	*link = (struct link){.prev = list->last};
	if (list->last) {
		last = link_at(catalog, section, link_offset, list->last);
		catalog_set(catalog, last->next, index);
	} else {
		list->first = index;
	}
	list->last = index;
	list->n++;
}

void catalog_list_remove(struct catalog *catalog, struct list *list,
			 enum catalog_section section, size_t link_offset,
			 uint32_t index)
{
	struct link *link = link_at(catalog, section, link_offset, index);
	struct link *other;

	assert(list->n > 0);
	catalog_save(catalog, list, sizeof(*list));
	catalog_save(catalog, link, sizeof(*link));
	if (link->prev) {
		other = link_at(catalog, section, link_offset, link->prev);
		catalog_set(catalog, other->next, link->next);
	} else {
		assert(list->first == index);
		list->first = link->next;
	}
	if (link->next) {
		other = link_at(catalog, section, link_offset, link->next);
		catalog_set(catalog, other->prev, link->prev);
	} else {
		assert(list->last == index);
		list->last = link->prev;
	}
	list->n--;
	*link = (struct link){0};
}

uint32_t *catalog_bucket(const struct catalog *catalog, enum catalog_hash hash,
			 uint64_t value)
{
	uint32_t *buckets = (void *)(catalog->base + hashes[hash].at);

	return &buckets[value & (hashes[hash].n - 1)];
}

void catalog_chain_remove(struct catalog *catalog, enum catalog_section section,
			  uint32_t *at, uint32_t index)
{
	while (*at != index) {
		assert(*at);
		at = next_of(record_at(catalog, section, *at), section);
	}
	catalog_set(catalog, *at,
		    *next_of(record_at(catalog, section, index), section));
}

/* --- blobs --------------------------------------------------------------- */

/* Returns 32, 48, 64, 96, 128, ...: at most half of a blob is unused. */
static uint64_t class_size(unsigned int class)
{
	return (class % 2 ? UINT64_C(48) : UINT64_C(32)) << class / 2;
}

_Static_assert((UINT64_C(32) << (BLOB_CLASSES - 1) / 2) == 65536 &&
		       BLOB_CLASSES % 2 == 1,
	       "the last class is 64 KiB");

static unsigned int class_of(size_t size)
{
	unsigned int class = 0;

	assert(size > 0 && size <= 65536);
	while (class_size(class) < size)
		class ++;
	return class;
}

/* Allocates a blob. A free blob begins with the offset of the next one of its
 * class. */
uint64_t catalog_blob_alloc(struct catalog *catalog, size_t size)
{
	struct catalog_header *header = catalog->header;
	unsigned int class = class_of(size);
	uint64_t blob = header->blob_free[class];
	uint64_t *next;

	if (!blob) {
		blob = header->blob_top;
		if (class_size(class) > CATALOG_SIZE - blob)
			return 0;
		catalog_set(catalog, header->blob_top,
			    blob + class_size(class));
		return blob;
	}
	/* Another blob may have lain here until this very transaction, so all
	 * bytes that the caller will overwrite are saved. */
	next = catalog_blob(catalog, blob);
	catalog_save(catalog, next,
		     size < sizeof(*next) ? sizeof(*next) : size);
	catalog_set(catalog, header->blob_free[class], *next);
	return blob;
}

void catalog_blob_release(struct catalog *catalog, uint64_t blob, size_t size)
{
	struct catalog_header *header = catalog->header;
	unsigned int class = class_of(size);
	uint64_t *next = catalog_blob(catalog, blob);

	catalog_set(catalog, *next, header->blob_free[class]);
	catalog_set(catalog, header->blob_free[class], blob);
}

void *catalog_blob(const struct catalog *catalog, uint64_t blob)
{
	assert(blob >= BLOBS_AT && blob < catalog->header->blob_top);
	return catalog->base + blob;
}

uint64_t catalog_blob_bytes(const struct catalog *catalog)
{
	return catalog->header->blob_top - BLOBS_AT;
}
