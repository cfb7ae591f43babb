/*
 * Slots: a slot is one version of one tensor. This file manages its record, and
 * its word in the state table; slot_state.h updates its state.
 *
 *   FREE -> WRITING -> PUBLISHED <-> LIMBO -> FREE, and WRITING -> LIMBO
 *
 * A slot is kept by its writer (while the writer holds it), by a name that
 * shows it, by a ticket, by a group of a communicator, by a channel, by a pin
 * of the broker itself, or by a lease of the bundle version that it is a member
 * of. A slot without a keeper is in LIMBO and lives only as long as some
 * session holds it. The state is a function of the keepers: callers change
 * keepers and then call slot_update_state() to update the state.
 *
 * The word is WRITING while the slot has a writer, is a buffer of a channel, or
 * is a member of a staged version. It is PUBLISHED while a name shows the slot,
 * and LIMBO otherwise. A ticket alone prevents the slot from being freed but
 * does not make it PUBLISHED: clients take PUBLISHED to mean that the name they
 * know still shows this slot. For the same reason a slot that ever had a name
 * gets no other one. A view or an anonymous tensor is in LIMBO from the start.
 * Groups and pins, like tickets, keep a slot without making it PUBLISHED.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdbool.h>
#include <stdint.h>

struct store;
struct error;

/*
 * Makes a slot over `block` with `type` (already checked; its extent is
 * `size`), `offset` bytes into the block, and the name it will have ("" for an
 * anonymous one). With `writer` 0 it starts in LIMBO, and the caller grants it
 * before slot_update_state(). Returns 0 if the catalog is full. The caller has
 * charged the uid one of ACCOUNT_SLOTS; freeing the slot refunds it.
 */
uint32_t slot_new(struct store *store, uint32_t block, uint64_t offset,
		  uint64_t size, const struct tensor_type *type,
		  const char *name, uint32_t writer, uint32_t uid);

/* Frees a slot that has neither keepers nor links: removes it from its block's
 * list, and releases the record with its blob. The word becomes FREE. */
void slot_free(struct store *store, uint32_t slot);

/*
 * Stores the word of this state, which must be able to follow the present one.
 * A caller that changes many records hides their slots first: then only the
 * words become LIMBO, and slot_update_state() follows in this or a later
 * transaction.
 */
void slot_set_word(struct store *store, uint32_t slot, enum slot_state state);
/* Does the same after a restart, when the word may be of a transaction that was
 * undone. */
void slot_reset_word(struct store *store, uint32_t slot, enum slot_state state);

/* Records that the contents will never be complete, and shows it in the
 * word. */
void slot_taint(struct store *store, uint32_t slot);

/* Returns the slot that `ref` names if it is live; otherwise returns 0, with
 * -ESTALE in `err`. */
uint32_t slot_find(const struct store *store, const struct slot_ref *ref,
		   struct error *err);

/*
 * These functions give a slot that never had a name the one under which it will
 * be published. There are two steps, because a batch must know first that all
 * of it will fit. slot_reserve_name() returns a reservation, or 0 if the
 * catalog is full. slot_set_name() consumes the reservation, and
 * slot_unreserve_name() returns it. The caller updates the index.
 */
uint64_t slot_reserve_name(struct store *store, uint32_t slot,
			   const char *name);
void slot_unreserve_name(struct store *store, uint32_t slot, const char *name,
			 uint64_t reserved);
void slot_set_name(struct store *store, uint32_t slot, const char *name,
		   uint64_t reserved);

/* Records that the writer has finished. It has no effect without a writer. The
 * caller then calls slot_update_state(). */
void slot_end_writer(struct store *store, uint32_t slot);

/* Pins a slot while the broker or its worker uses the memory. Pins are counted
 * and not persistent: after a restart no slot is pinned. slot_unpin()
 * (slot_state.h) ends one. */
void slot_pin(struct store *store, uint32_t slot);

/* Makes this group (record) a keeper of the slot; 0: no group keeps it. The
 * caller then calls slot_update_state(). */
void slot_set_group(struct store *store, uint32_t slot, uint32_t group);

/* Makes the slot a buffer of this channel (record); 0: of none. The word is
 * WRITING as long as it is a buffer, so that its users see when it has left.
 * The caller then calls slot_update_state(). */
void slot_set_channel(struct store *store, uint32_t slot, uint32_t channel);

/* Describes the type of a slot, and its name: the one that it has or had, or
 * will have in a bundle. The name is copied to `ret_name` (NAME_MAX_SIZE + 1
 * bytes). Either may be NULL. */
void slot_describe(const struct store *store, uint32_t slot,
		   struct tensor_type *ret_type, char *ret_name);

/* The allocation that contains a slot; the slot keeps all of it. */
struct block_use {
	uint64_t id;   /* differs from the id of every other allocation */
	uint64_t size; /* bytes that are allocated, and charged to `uid` */
	/* The number of tensors in it; for shared memory, a lower bound. */
	uint32_t n_slots;
	uint32_t uid;
	uint32_t maker; /* session that allocated it; 0: it has ended */
};
struct block_use slot_block_use(const struct store *store, uint32_t slot);

/* Returns the version of the slot's name. A member has the version of its
 * bundle. */
uint64_t slot_version(const struct store *store, uint32_t slot);

/* Returns the access class of a slot's memory. */
struct access_class slot_access(const struct store *store, uint32_t slot);
