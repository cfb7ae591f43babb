/*
 * Slots: the record, its blob, and the word in the state table.
 *
 * LAYOUT of a slot's blob: the name without a final 0, padding to 8 bytes, the
 * shape, the strides (int64 each).
 */
#include "broker/tensor/slot.h"
#include "broker/tensor/store.h"
#include "proto/error.h"
#include <assert.h>
#include <errno.h>

#define BLOCK_LINK offsetof(struct slot_record, block_link)
#define OWN_LINK   offsetof(struct slot_record, session_link)

/* The permitted transitions, from row to column. FREE is entered only through
 * LIMBO, so that a client that acquires meanwhile is noticed. */
static const bool moves[4][4] = {
	[SLOT_FREE] = {[SLOT_WRITING] = true, [SLOT_LIMBO] = true},
	[SLOT_WRITING] = {[SLOT_PUBLISHED] = true, [SLOT_LIMBO] = true},
	[SLOT_PUBLISHED] = {[SLOT_LIMBO] = true},
	/* To WRITING: the slot becomes a channel's buffer, and no client knows
	 * it yet. */
	[SLOT_LIMBO] = {[SLOT_WRITING] = true,
			[SLOT_PUBLISHED] = true,
			[SLOT_FREE] = true},
};

static uint64_t word_of(const struct slot_record *record, enum slot_state state)
{
	uint64_t word = table_word(record->generation, state);

	if (state != SLOT_FREE && record->flags & SLOT_FLAG_TAINTED)
		word |= SLOT_TAINTED;
	return word;
}

void slot_set_word(struct store *store, uint32_t slot, enum slot_state state)
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

void slot_reset_word(struct store *store, uint32_t slot, enum slot_state state)
{
	table_store(&store->table, slot,
		    word_of(catalog_slot(&store->catalog, slot), state));
}

/* --- blobs --------------------------------------------------------------- */

static size_t name_room(size_t name_size)
{
	return (name_size + 7) & ~(size_t)7;
}

/* Returns the size of the blob. A 0-d tensor without a name needs no bytes, but
 * a blob cannot be empty. */
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

/* --- creation and keepers ------------------------------------------------ */

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

void slot_free(struct store *store, uint32_t slot)
{
	struct catalog *catalog = &store->catalog;
	struct slot_record *record = catalog_slot(catalog, slot);

	catalog_blob_release(catalog, record->blob,
			     blob_size(record->name_size, record->n_dims));
	slot_set_word(store, slot, SLOT_FREE);
	catalog_list_remove(catalog,
			    &catalog_block(catalog, record->block)->slots,
			    SECTION_SLOT, BLOCK_LINK, slot);
	catalog_release(catalog, SECTION_SLOT, slot);
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
		slot_set_word(store, slot, table_word_state(word));
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

void slot_pin(struct store *store, uint32_t slot)
{
	catalog_slot(&store->catalog, slot)->n_pins++;
}

void slot_set_channel(struct store *store, uint32_t slot, uint32_t channel)
{
	catalog_set(&store->catalog,
		    catalog_slot(&store->catalog, slot)->channel, channel);
}

void slot_set_group(struct store *store, uint32_t slot, uint32_t group)
{
	catalog_set(&store->catalog, catalog_slot(&store->catalog, slot)->group,
		    group);
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
			"slot %u has no tensor of generation %llu, or it was "
			"freed; get the tensor again",
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

/* Memory that a process shared is one allocation, however many blocks are in
 * it. If it is charged, it is charged as a whole. */
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
