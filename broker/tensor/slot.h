/*
 * The life of a slot: one version of one tensor.
 *
 *   FREE -> WRITING -> PUBLISHED <-> LIMBO -> FREE, and WRITING -> LIMBO
 *
 * A slot is kept by its writer (while the writer holds it), by a name that
 * shows it, by a ticket, by a group of a communicator, by a pin of the broker
 * itself, or by a lease of the bundle version that it is a member of. A slot
 * without a keeper is in LIMBO and lives only as long as some session holds it.
 * The state is a function of the keepers: callers change keepers and then call
 * slot_settle() to update the state. Only that function stores the table word,
 * moves slots into and out of the limbo list, and frees them.
 *
 * The word is WRITING while there is a writer, PUBLISHED while a name shows the
 * slot, and LIMBO otherwise. A ticket alone prevents the slot from being freed
 * but does not make it PUBLISHED: clients take PUBLISHED to mean that the name
 * they know still shows this slot. For the same reason a slot that ever had a
 * name gets no other one. A view or an anonymous tensor is in LIMBO from the
 * start. Groups and pins, like tickets, keep a slot without making it
 * PUBLISHED.
 */
#pragma once
#include "broker/catalog/catalog.h"
#include <stdbool.h>
#include <stdint.h>

struct store;
struct error;
struct holdings;

/*
 * Make a slot over `block` with `type` (already checked; its extent is `size`),
 * `offset` bytes into the block, and the name it will have ("" for an anonymous
 * one). With `writer` 0 it starts in LIMBO, and the caller grants it before
 * slot_settle(). Returns 0 if the catalog is full. The caller has charged the
 * uid one of ACCOUNT_SLOTS; freeing the slot refunds it.
 */
uint32_t slot_new(struct store *store, uint32_t block, uint64_t offset,
		  uint64_t size, const struct tensor_type *type,
		  const char *name, uint32_t writer, uint32_t uid);

/* The state that follows from the keepers; FREE if the record is free. */
enum slot_state slot_state(const struct store *store, uint32_t slot);

/* Below this much journal space, slot_settle() defers freeing. */
#define SLOT_SETTLE_ROOM (UINT32_C(27) << 20)

/*
 * Update the word, the limbo list and the memory to match keepers and holds.
 * Frees the slot (and its block, if it was the last slot there) when it has no
 * keeper, no session holds it, and no device is using it. Returns true if it
 * was freed. When the journal is almost half full, the slot only enters limbo
 * and is collected in a later round of the loop, so that 131,072 slots can be
 * updated in one transaction however many sessions have grants of them.
 */
bool slot_settle(struct store *store, uint32_t slot);

enum slot_use {
	SLOT_UNUSED,
	SLOT_FENCED, /* no session holds it, but devices are using it */
	SLOT_HELD,   /* granted + delta is above 0 for some session */
};
enum slot_use slot_use(const struct store *store, uint32_t slot);
bool slot_is_held(const struct store *store, uint32_t slot);

/* Record that the contents will never be complete, and show it in the word. */
void slot_taint(struct store *store, uint32_t slot);

/* The slot that `ref` names if it is live, else 0 with -ESTALE in `err`. */
uint32_t slot_find(const struct store *store, const struct slot_ref *ref,
		   struct error *err);

/*
 * Give a slot that never had a name the one under which it will be published.
 * There are two steps, because a batch must know first that all of it will fit:
 * the reservation (0 if the catalog is full; slot_unreserve_name() returns it)
 * and the change, which consumes the reservation. The caller updates the index.
 */
uint64_t slot_reserve_name(struct store *store, uint32_t slot,
			   const char *name);
void slot_unreserve_name(struct store *store, uint32_t slot, const char *name,
			 uint64_t reserved);
void slot_set_name(struct store *store, uint32_t slot, const char *name,
		   uint64_t reserved);

/* The writer has finished; no effect without one. The caller then
 * calls slot_settle(). */
void slot_end_writer(struct store *store, uint32_t slot);

/* The name no longer shows the slot (it was removed, replaced or has expired,
 * or its session ended): remove it from the index and undo deadline and tie.
 * The caller then calls slot_settle(). */
void slot_end_name(struct store *store, uint32_t slot);

/*
 * Pins keep a slot while the broker or its worker uses the memory. They are
 * counted and not persistent: after a restart no slot is pinned. Unpinning
 * updates the state; it returns true if the slot was freed.
 */
void slot_pin(struct store *store, uint32_t slot);
bool slot_unpin(struct store *store, uint32_t slot);

/* Make this group (record) a keeper of the slot; 0: no group keeps it. The
 * caller then calls slot_settle(). */
void slot_set_group(struct store *store, uint32_t slot, uint32_t group);

/* Let the name expire at this time (CLOCK_BOOTTIME). -ENOMEM: no memory. */
int slot_set_deadline(struct store *store, uint32_t slot, uint64_t at_ms,
		      struct error *err);

/* End the writer of each slot that a dead session writes, remove the name of
 * each slot that is tied to it, and update their states. Each slot takes one
 * from `*left`; when that reaches 0, there may be more. Commits in steps. */
void slot_end_session(struct store *store, uint32_t session, uint32_t *left);

/* Hide the slot from readers of the table before the caller changes its own
 * records: only the word becomes LIMBO. slot_settle() follows in this or a
 * later transaction. */
void slot_hide(struct store *store, uint32_t slot);

/* Evict a published slot that no session holds and no device uses. Returns
 * false, with nothing changed, if it is in use. */
bool slot_evict(struct store *store, uint32_t slot);

/*
 * After a restart: charge the accounts, store the words, set the deadlines, and
 * update every state. Call it after the other adoptions (pools,
 * ticket_adopt_all(), bundle_adopt_all()) but before the holdings of dead
 * sessions are dropped, since freeing a slot refunds its charge. The n_bytes of
 * the sessions in store.holdings[] are set, too.
 */
int slot_adopt_all(struct store *store, struct error *err);

/* Name and type of a slot: the name that it has or had, or will have in a
 * bundle. The name is copied to `ret_name` (NAME_MAX_SIZE + 1 bytes). Either
 * may be NULL. */
void slot_describe(const struct store *store, uint32_t slot,
		   struct tensor_type *ret_type, char *ret_name);

/* Fill a place. Its `name` points to `name_buffer` (NAME_MAX_SIZE + 1 bytes, at
 * least as long-lived as the place), or is "" if that is NULL. */
void slot_place(const struct store *store, uint32_t slot, char *name_buffer,
		struct tensor_place *ret);

/* The allocation that contains a slot; the slot keeps all of it. */
struct block_use {
	uint64_t id;   /* differs from that of every other allocation */
	uint64_t size; /* bytes that are allocated, and charged to `uid` */
	/* Tensors in it; for shared memory, at least that many. */
	uint32_t n_slots;
	uint32_t uid;
	uint32_t maker; /* session that allocated it; 0: it has ended */
};
struct block_use slot_block_use(const struct store *store, uint32_t slot);

/* The version of the slot's name; a member has that of its bundle. */
uint64_t slot_version(const struct store *store, uint32_t slot);

/* The access class of a slot's memory. */
struct access_class slot_access(const struct store *store, uint32_t slot);
