/*
 * Slots: the record, the word in the state table, and slot_settle(), which
 * keeps the two consistent.
 *
 * Reclaiming is the broker's half of the protocol in shm/refs.h: first the word
 * becomes LIMBO, with a seq_cst store, and then the counts are read. A client
 * that acquired before that store is counted; a client that acquires after it
 * sees LIMBO and backs out. A device may still be working on a slot that no
 * session holds: for the writer until its ready fence is reached (order.h), for
 * a reader until the fence that the release recorded.
 *
 * LAYOUT of a slot's blob: the name without a final 0, padding to 8, the shape,
 * the strides (int64 each).
 */
#include "broker/tensor/slot.h"
#include "broker/tensor/bundle.h"
#include "broker/tensor/grant.h"
#include "broker/tensor/index.h"
#include "broker/tensor/order.h"
#include "broker/tensor/prefix.h"
#include "broker/tensor/store.h"
#include "broker/tensor/unshare.h"
#include "proto/error.h"
#include "proto/name.h"
#include "proto/point.h"
#include <assert.h>
#include <errno.h>

#define BLOCK_LINK offsetof(struct slot_record, block_link)
#define LIMBO_LINK offsetof(struct slot_record, limbo_link)
#define OWN_LINK   offsetof(struct slot_record, session_link)

/* From row to column. FREE is entered only through LIMBO, so that a client that
 * acquires meanwhile is noticed. */
static const bool moves[4][4] = {
	[SLOT_FREE] = {[SLOT_WRITING] = true, [SLOT_LIMBO] = true},
	[SLOT_WRITING] = {[SLOT_PUBLISHED] = true, [SLOT_LIMBO] = true},
	[SLOT_PUBLISHED] = {[SLOT_LIMBO] = true},
	[SLOT_LIMBO] = {[SLOT_PUBLISHED] = true, [SLOT_FREE] = true},
};

static uint64_t word_of(const struct slot_record *record, enum slot_state state)
{
	uint64_t word = table_word(record->generation, state);

	if (state != SLOT_FREE && record->flags & SLOT_FLAG_TAINTED)
		word |= SLOT_TAINTED;
	return word;
}

static void set_word(struct store *store, uint32_t slot, enum slot_state state)
{
	const struct slot_record *record = catalog_slot(&store->catalog, slot);
	uint64_t old = table_load(&store->table, slot);
	uint64_t new = word_of(record, state);

	if (old == new)
		return;
	assert(moves[table_word_state(old)][state] ||
	       (new &SLOT_TAINTED &&table_word_state(old) == state));
	assert(table_word_state(old) == SLOT_FREE ||
	       table_word_generation(old) == record->generation);
	table_store(&store->table, slot, new);
}

/* --- blobs --------------------------------------------------------------- */

static size_t name_room(size_t name_size)
{
	return (name_size + 7) & ~(size_t)7;
}

/* A 0-d tensor without a name needs no bytes, but a blob cannot be empty. */
static size_t blob_size(size_t name_size, size_t n_dims)
{
	size_t size = name_room(name_size) + n_dims * 2 * sizeof(int64_t);

	return size ? size : 8;
}

static void blob_fill(const struct store *store, uint64_t blob,
		      const char *name, const struct tensor_type *type)
{
	uint8_t *at = catalog_blob(&store->catalog, blob);
	size_t dims_size = type->n_dims * sizeof(int64_t);

	memcpy(at, name, strlen(name));
	at += name_room(strlen(name));
	memcpy(at, type->shape, dims_size);
	memcpy(at + dims_size, type->strides, dims_size);
}

static void read_type(const struct store *store,
		      const struct slot_record *record, struct tensor_type *ret)
{
	const uint8_t *at = catalog_blob(&store->catalog, record->blob);
	size_t dims_size = record->n_dims * sizeof(int64_t);

	*ret = (struct tensor_type){
		.dtype = record->dtype,
		.n_dims = record->n_dims,
	};
	at += name_room(record->name_size);
	memcpy(ret->shape, at, dims_size);
	memcpy(ret->strides, at + dims_size, dims_size);
}

uint64_t slot_reserve_name(struct store *store, uint32_t slot, const char *name)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);

	return catalog_blob_alloc(&store->catalog,
				  blob_size(strlen(name), record->n_dims));
}

void slot_unreserve_name(struct store *store, uint32_t slot, const char *name,
			 uint64_t reserved)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);

	catalog_blob_release(&store->catalog, reserved,
			     blob_size(strlen(name), record->n_dims));
}

void slot_set_name(struct store *store, uint32_t slot, const char *name,
		   uint64_t reserved)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	struct tensor_type type;

	assert(!(record->flags & SLOT_FLAG_NAMED) && !record->name_size);
	read_type(store, record, &type);
	blob_fill(store, reserved, name, &type);
	catalog_blob_release(catalog, record->blob,
			     blob_size(0, record->n_dims));
	catalog_set(catalog, record->blob, reserved);
	catalog_set(catalog, record->name_size, (uint16_t)strlen(name));
}

/* --- creation ------------------------------------------------------------ */

uint32_t slot_new(struct store *store, uint32_t block, uint64_t offset,
		  uint64_t size, const struct tensor_type *type,
		  const char *name, uint32_t writer, uint32_t uid)
{
	struct catalog *catalog = &store->catalog;
	size_t bytes = blob_size(strlen(name), type->n_dims);
	uint64_t blob = catalog_blob_alloc(catalog, bytes);
	struct slot_record *record;
	uint32_t slot;

	if (!blob)
		return 0;
	slot = catalog_alloc(catalog, SECTION_SLOT);
	if (!slot) {
		catalog_blob_release(catalog, blob, bytes);
		return 0;
	}
	blob_fill(store, blob, name, type);
	record = catalog_slot(catalog, slot);
	record->generation++;
	record->offset = offset;
	record->size = size;
	record->blob = blob;
	record->born_ms = now_ms();
	record->block = block;
	record->writer = writer;
	record->uid = uid;
	record->name_size = (uint16_t)strlen(name);
	record->dtype = (uint8_t)type->dtype;
	record->n_dims = (uint8_t)type->n_dims;
	catalog_list_append(catalog, &catalog_block(catalog, block)->slots,
			    SECTION_SLOT, BLOCK_LINK, slot);
	if (writer)
		catalog_list_append(catalog,
				    &catalog_session(catalog, writer)->own,
				    SECTION_SLOT, OWN_LINK, slot);
	return slot;
}

/* --- keepers and state --------------------------------------------------- */

enum slot_state slot_state(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);

	if (!record->block)
		return SLOT_FREE;
	if (record->writer)
		return SLOT_WRITING;
	if (record->bundle &&
	    catalog_bundle(catalog, record->bundle)->state == BUNDLE_STAGED)
		return SLOT_WRITING;
	return index_shows(store, slot) ? SLOT_PUBLISHED : SLOT_LIMBO;
}

enum slot_use slot_use(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	uint32_t grant = record->grants.first;
	enum slot_use use = SLOT_UNUSED;

	if (record->order && order_is_pending(store, slot))
		use = SLOT_FENCED;
	for (; grant; grant = catalog_grant(catalog, grant)->slot_link.next) {
		if (grant_holds(store, grant) > 0)
			return SLOT_HELD;
		if (grant_is_fenced(store, grant))
			use = SLOT_FENCED;
	}
	return use;
}

bool slot_is_held(const struct store *store, uint32_t slot)
{
	return slot_use(store, slot) == SLOT_HELD;
}

void slot_taint(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	uint64_t word = table_load(&store->table, slot);

	catalog_set(catalog, record->flags,
		    (uint16_t)(record->flags | SLOT_FLAG_TAINTED));
	/* A slot that was just made has no word yet. */
	if (table_word_generation(word) == record->generation)
		set_word(store, slot, table_word_state(word));
}

void slot_end_writer(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	if (!record->writer)
		return;
	catalog_list_remove(catalog,
			    &catalog_session(catalog, record->writer)->own,
			    SECTION_SLOT, OWN_LINK, slot);
	catalog_set(catalog, record->writer, 0);
}

void slot_end_name(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	if (!(record->flags & SLOT_FLAG_NAMED))
		return;
	deadlines_remove(&store->base->deadlines, &record->heap_position);
	if (!record->bundle)
		bundle_note_name(store, slot, -1);
	index_remove(store, slot);
	if (record->tied) {
		catalog_list_remove(
			catalog, &catalog_session(catalog, record->tied)->own,
			SECTION_SLOT, OWN_LINK, slot);
		catalog_set(catalog, record->tied, 0);
	}
	evict_remove(store, slot);
	catalog_set(catalog, record->deadline_ms, 0);
	catalog_set(catalog, record->flags,
		    (uint16_t)(record->flags & ~SLOT_FLAG_NAMED));
}

void slot_pin(struct store *store, uint32_t slot)
{
	catalog_slot(&store->catalog, slot)->n_pins++;
}

bool slot_unpin(struct store *store, uint32_t slot)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);

	assert(record->n_pins > 0);
	record->n_pins--;
	return slot_settle(store, slot);
}

void slot_set_group(struct store *store, uint32_t slot, uint32_t group)
{
	catalog_set(&store->catalog, catalog_slot(&store->catalog, slot)->group,
		    group);
}

/* The name has expired. */
static void on_deadline(void *data, uint32_t slot)
{
	struct store *store = data;

	events_note_slot(store, slot, EVENT_EXPIRED);
	slot_end_name(store, slot);
	slot_settle(store, slot);
	catalog_commit(&store->catalog);
}

int slot_set_deadline(struct store *store, uint32_t slot, uint64_t at_ms,
		      struct error *err)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);
	struct deadline deadline = {
		.at_ms = at_ms,
		.fn = on_deadline,
		.data = store,
		.index = slot,
		.position = &record->heap_position,
	};

	return deadlines_add(&store->base->deadlines, &deadline, err);
}

/* --- limbo and freeing --------------------------------------------------- */

static void enter_limbo(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	if (record->flags & SLOT_FLAG_IN_LIMBO)
		return;
	catalog_list_append(catalog, &catalog->header->limbo, SECTION_SLOT,
			    LIMBO_LINK, slot);
	catalog_set(catalog, record->flags,
		    (uint16_t)(record->flags | SLOT_FLAG_IN_LIMBO));
	limbo_note_size(store);
}

static void leave_limbo(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	if (!(record->flags & SLOT_FLAG_IN_LIMBO))
		return;
	catalog_list_remove(catalog, &catalog->header->limbo, SECTION_SLOT,
			    LIMBO_LINK, slot);
	catalog_set(catalog, record->flags,
		    (uint16_t)(record->flags & ~SLOT_FLAG_IN_LIMBO));
}

static void refund(struct store *store, uint32_t uid, enum account_kind kind,
		   uint64_t amount)
{
	struct account *account = accounts_get(&store->base->accounts, uid);

	assert(account); /* it was charged, so it exists */
	account_refund(account, kind, amount);
}

/* The last slot of the block was freed. */
static void free_block(struct store *store, uint32_t index)
{
	struct block_record *block = catalog_block(&store->catalog, index);
	const struct device_uuid *device =
		pool_block_device(&store->pools, block);
	uint64_t charge = pool_block_charge(&store->pools, block);
	struct holdings *maker = store->holdings[block->maker];

	refund(store, block->uid, pool_account(device), charge);
	if (maker) {
		assert(maker->n_bytes >= charge);
		maker->n_bytes -= charge;
	}
	pool_release(&store->pools, index);
}

/* Has the slot a keeper that the word does not show? */
static bool is_kept(const struct store *store, const struct slot_record *record)
{
	return record->n_tickets || record->group || record->n_pins ||
	       (record->bundle && store->bundles[record->bundle].n_leases);
}

static void free_slot(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	uint32_t block = record->block;
	struct list *siblings = &catalog_block(catalog, block)->slots;

	assert(!record->writer && !record->tied && !is_kept(store, record));
	unshare_end(store, slot);
	leave_limbo(store, slot);
	order_end(store, slot);
	grant_drop_slot(store, slot);
	slot_end_name(store, slot); /* a bundle member may still have one */
	if (record->bundle)
		bundle_forget_member(store, slot);
	catalog_blob_release(catalog, record->blob,
			     blob_size(record->name_size, record->n_dims));
	refund(store, record->uid, ACCOUNT_SLOTS, 1);
	set_word(store, slot, SLOT_FREE);
	catalog_list_remove(catalog, siblings, SECTION_SLOT, BLOCK_LINK, slot);
	catalog_release(catalog, SECTION_SLOT, slot);
	point("slot.freed");
	if (!siblings->n)
		free_block(store, block);
	else
		unshare_look(store, siblings->first);
	store->n_freed_slots++;
	wake_room(&store->base->wake);
}

bool slot_settle(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	enum slot_state state = slot_state(store, slot);
	enum slot_use use;

	if (state == SLOT_FREE)
		return false;
	/* A writer that released its last hold has given up: it cannot reach an
	 * unpublished slot again. */
	if (catalog_slot(catalog, slot)->writer && !slot_is_held(store, slot)) {
		slot_end_writer(store, slot);
		state = slot_state(store, slot);
	}
	set_word(store, slot, state);
	if (state != SLOT_LIMBO ||
	    is_kept(store, catalog_slot(catalog, slot))) {
		leave_limbo(store, slot);
		return false;
	}
	point("slot.limbo");
	use = slot_use(store, slot);
	if (use != SLOT_UNUSED) {
		enter_limbo(store, slot);
		if (use == SLOT_FENCED)
			limbo_watch(store, slot);
		else
			unshare_look(store, slot);
		return false;
	}
	if (catalog_journal_room(catalog) < SLOT_SETTLE_ROOM) {
		enter_limbo(store, slot);
		limbo_collect_later(store);
		return false;
	}
	free_slot(store, slot);
	return true;
}

void slot_hide(struct store *store, uint32_t slot)
{
	set_word(store, slot, SLOT_LIMBO);
}

bool slot_evict(struct store *store, uint32_t slot)
{
	set_word(store, slot, SLOT_LIMBO);
	point("slot.evict");
	if (slot_use(store, slot) != SLOT_UNUSED) {
		set_word(store, slot, SLOT_PUBLISHED);
		return false;
	}
	events_note_slot(store, slot, EVENT_EVICTED);
	slot_end_name(store, slot);
	return slot_settle(store, slot);
}

void slot_end_session(struct store *store, uint32_t session, uint32_t *left)
{
	struct catalog *catalog = &store->catalog;
	struct list *own = &catalog_session(catalog, session)->own;
	uint32_t slot;

	for (; own->first && *left > 0; --*left) {
		slot = own->first;
		slot_end_writer(store, slot);
		if (catalog_slot(catalog, slot)->tied) {
			events_note_slot(store, slot, EVENT_ENDED);
			slot_end_name(store, slot);
		}
		slot_settle(store, slot);
		point("slot.disowned");
		catalog_commit(catalog);
	}
}

/* --- adoption ------------------------------------------------------------ */

static int adopt_charge(struct store *store, uint32_t slot, struct error *err)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);
	struct block_record *block = catalog_block(catalog, record->block);
	struct account *payer =
		accounts_get(&store->base->accounts, record->uid);
	struct account *owner =
		accounts_get(&store->base->accounts, block->uid);
	const struct device_uuid *device =
		pool_block_device(&store->pools, block);
	uint64_t charge = pool_block_charge(&store->pools, block);

	if (!payer || !owner)
		return error_nomem(err, "accounts");
	account_charge_adopted(payer, ACCOUNT_SLOTS, 1);
	if (block->slots.first != slot)
		return 0;
	account_charge_adopted(owner, pool_account(device), charge);
	if (store->holdings[block->maker])
		store->holdings[block->maker]->n_bytes += charge;
	return 0;
}

static int adopt(struct store *store, uint32_t slot, struct error *err)
{
	struct slot_record *record = catalog_slot(&store->catalog, slot);
	enum slot_state state = slot_state(store, slot);

	/* The word may be from a transaction that was undone, so it is stored
	 * without checking the transition. */
	table_store(&store->table, slot, word_of(record, state));
	if (state == SLOT_FREE)
		return 0;
	record->heap_position = 0;
	record->is_fenced = 0;
	record->n_pins = 0;
	if (record->deadline_ms &&
	    slot_set_deadline(store, slot, record->deadline_ms, err) < 0)
		return -ENOMEM;
	if (adopt_charge(store, slot, err) < 0)
		return -ENOMEM;
	if (index_shows(store, slot) && !record->bundle &&
	    (record->flags & PUBLISH_EVICTABLE))
		evict_add(store, slot);
	return 0;
}

/* Clear words beyond the last record ever used, set by a request that
 * was undone. */
static void forget_words(struct store *store, uint32_t from)
{
	uint32_t slot;

	for (slot = from; slot < TABLE_SLOTS; slot++) {
		if (slot >= from + MESSAGE_MAX_ITEMS)
			return;
		table_store(&store->table, slot, table_word(0, SLOT_FREE));
	}
}

int slot_adopt_all(struct store *store, struct error *err)
{
	struct catalog *catalog = &store->catalog;
	uint32_t n = catalog_n_touched(catalog, SECTION_SLOT);
	uint32_t slot;
	int r;

	for (slot = 1; slot <= n; slot++) {
		r = adopt(store, slot, err);
		if (r < 0)
			return r;
	}
	forget_words(store, n + 1);
	/* From here on all accounts are charged, so that slot_settle()
	 * can refund. */
	for (slot = 1; slot <= n; slot++) {
		slot_settle(store, slot);
		catalog_commit(catalog);
	}
	return 0;
}

/* --- lookup -------------------------------------------------------------- */

uint32_t slot_find(const struct store *store, const struct slot_ref *ref,
		   struct error *err)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record;

	if (ref->slot > 0 &&
	    ref->slot <= catalog_n_touched(catalog, SECTION_SLOT)) {
		record = catalog_slot(catalog, ref->slot);
		if (record->block && record->generation == ref->generation)
			return ref->slot;
	}
	(void)error_set(err, -ESTALE,
			"there is no tensor in slot %u of generation %llu (any "
			"more)",
			ref->slot, (unsigned long long)ref->generation);
	return 0;
}

void slot_describe(const struct store *store, uint32_t slot,
		   struct tensor_type *ret_type, char *ret_name)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);

	if (ret_type)
		read_type(store, record, ret_type);
	if (ret_name) {
		memcpy(ret_name, catalog_blob(catalog, record->blob),
		       record->name_size);
		ret_name[record->name_size] = '\0';
	}
}

uint64_t slot_version(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);

	return record->bundle ? catalog_bundle(catalog, record->bundle)->version
			      : record->version;
}

void slot_place(const struct store *store, uint32_t slot, char *name_buffer,
		struct tensor_place *ret)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	const struct block_record *block =
		catalog_block(catalog, record->block);

	*ret = (struct tensor_place){
		.ref = {slot, record->generation},
		.chunk = catalog_chunk(catalog, block->chunk)->id,
		.offset = block->offset + record->offset,
		.size = record->size,
		.version = slot_version(store, slot),
		.name = name_buffer ? name_buffer : "",
		.is_tainted = record->flags & SLOT_FLAG_TAINTED,
	};
	if (record->order)
		order_describe(store, slot, &ret->order);
	slot_describe(store, slot, &ret->type, name_buffer);
}

/* Memory that a process shared is one allocation, however many blocks are in
 * it, and it is charged as a whole if at all. */
struct block_use slot_block_use(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	uint32_t index = catalog_slot(catalog, slot)->block;
	const struct block_record *block = catalog_block(catalog, index);
	const struct chunk_record *chunk = catalog_chunk(catalog, block->chunk);
	struct block_use use = {
		.id = index,
		.size = pool_block_charge(&store->pools, block),
		.n_slots = block->slots.n,
		.uid = block->uid,
		.maker = block->maker,
	};

	if (chunk->shared) {
		use.id = UINT64_C(1) << 32 | block->chunk;
		use.size = chunk->size;
		use.n_slots = chunk->n_blocks;
	}
	return use;
}

struct access_class slot_access(const struct store *store, uint32_t slot)
{
	const struct catalog *catalog = &store->catalog;
	const struct slot_record *record = catalog_slot(catalog, slot);
	const struct block_record *block =
		catalog_block(catalog, record->block);

	return catalog_chunk(catalog, block->chunk)->access;
}
