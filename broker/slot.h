/*
 * The life of a slot: one version of one tensor.
 *
 *   FREE -> WRITING -> PUBLISHED <-> LIMBO -> FREE, and WRITING -> LIMBO
 *
 * A slot is kept by its writer (while that holds it), by a name that shows it,
 * by a ticket, by a group of a communicator, by a pin of the broker itself, or
 * by a lease of the version that it is a member of. What nothing keeps is in
 * LIMBO and lives only as long as some session holds it. The state is a
 * function of the keepers: callers change keepers and then call slot_settle(),
 * the one place that stores the table word, moves slots into and out of the
 * limbo list, and frees.
 *
 * The word says WRITING while there is a writer, PUBLISHED while a name shows
 * the slot, else LIMBO. A ticket alone keeps a slot from being freed but does
 * not make it PUBLISHED: clients take PUBLISHED to mean that the name they know
 * still shows this slot. For the same reason a slot that ever had a name takes
 * no other one. (A view or anonymous tensor is in LIMBO from birth.) Groups and
 * pins, like tickets, keep a slot without making it PUBLISHED.
 */
#pragma once
#include "broker/catalog.h"
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;
struct session;

/*
 * A new slot over `block` with `type` (checked, its span is `size`), `offset`
 * bytes into the block, and the name it will have ("": none). `writer` 0: born
 * in LIMBO (the caller grants it before slot_settle()). 0 if the catalog is
 * full. The uid is charged one of ACCOUNT_SLOTS already; freeing refunds it.
 */
uint32_t slot_new(struct broker *broker, uint32_t block, uint64_t offset,
		  uint64_t size, const struct tensor_type *type,
		  const char *name, uint32_t writer, uint32_t uid);

/* State by its keepers; FREE if the record is. */
enum slot_state slot_state(const struct broker *broker, uint32_t slot);

/* Journal room below which slot_settle() leaves freeing for later. */
#define SLOT_SETTLE_ROOM (UINT32_C(27) << 20)

/*
 * Bring word, limbo list and memory in line with keepers and holds. Frees the
 * slot (and its block, if it was the last there) when nothing keeps it and
 * nobody holds it and no device is at work on it. True: it was freed. Where the
 * journal is almost half full the slot only goes to limbo, which a later round
 * of the loop collects: so 131,072 slots can be settled in one transaction,
 * however many sessions have grants of them.
 */
bool slot_settle(struct broker *broker, uint32_t slot);

enum slot_use {
	SLOT_UNUSED,
	SLOT_FENCED, /* nobody holds it, but devices are at work on it */
	SLOT_HELD,   /* granted + delta of some session is above 0 */
};
enum slot_use slot_use(const struct broker *broker, uint32_t slot);
bool slot_is_held(const struct broker *broker, uint32_t slot);

/* Its contents will never be there; in the word from now on. */
void slot_taint(struct broker *broker, uint32_t slot);

/* The slot if `ref` is a live one, else 0 with -ESTALE in `err`. */
uint32_t slot_find(const struct broker *broker, const struct slot_ref *ref,
		   struct error *err);

/*
 * Give a slot that never had a name the one it will be published under. In two
 * steps, because a batch must know that all of it will fit: room for the name
 * (0: the catalog is full; give it back by slot_unreserve_name()), then the
 * change, which uses it up. The index is the caller's.
 */
uint64_t slot_reserve_name(struct broker *broker, uint32_t slot,
			   const char *name);
void slot_unreserve_name(struct broker *broker, uint32_t slot, const char *name,
			 uint64_t reserved);
void slot_set_name(struct broker *broker, uint32_t slot, const char *name,
		   uint64_t reserved);

/* The writer writes no more; the caller settles. Nothing if it has none. */
void slot_end_writer(struct broker *broker, uint32_t slot);

/* The name shows the slot no more (removed, replaced, expired, its session
 * gone): out of the index, deadline and tie undone. The caller settles. */
void slot_end_name(struct broker *broker, uint32_t slot);

/*
 * Pins keep a slot while the broker or its worker uses the memory; counted, and
 * gone with the process: after a restart nothing is pinned. Unpinning settles;
 * true: it was freed.
 */
void slot_pin(struct broker *broker, uint32_t slot);
bool slot_unpin(struct broker *broker, uint32_t slot);

/* Keep the slot by this group (record), or, 0, by none; the caller settles. */
void slot_set_group(struct broker *broker, uint32_t slot, uint32_t group);

/* End the name at this time (CLOCK_BOOTTIME). -ENOMEM: no heap. */
int slot_set_deadline(struct broker *broker, uint32_t slot, uint64_t at_ms,
		      struct error *err);

/* What a dead session writes is written no more, what is tied to it loses its
 * name; each slot is settled, and one taken from `*left` for each: there may be
 * more if that is 0. Commits in steps. */
void slot_end_session(struct broker *broker, uint32_t session, uint32_t *left);

/* Take the slot away from those who find it in the table, before the
 * caller's own bookkeeping: only the word becomes LIMBO. slot_settle() follows
 * in this or a later transaction. */
void slot_hide(struct broker *broker, uint32_t slot);

/* Let a published slot go if nobody and no device uses it. False: somebody
 * does, and nothing changed. */
bool slot_evict(struct broker *broker, uint32_t slot);

/*
 * After a restart: accounts are charged, words stored, deadlines set, limbo
 * settled. Call it last of the adoptions (pools, ticket_adopt_all(),
 * bundle_adopt_all()) but before a dead session's holdings are dropped: what
 * is freed is refunded. Sessions in broker.sessions[] get their n_bytes.
 */
int slot_adopt_all(struct broker *broker, struct error *err);

/* Name and type of a slot (the name it has or had, or that it will have in a
 * bundle); the name is copied to `ret_name` (NAME_MAX_SIZE + 1 bytes), either
 * may be NULL. */
void slot_describe(const struct broker *broker, uint32_t slot,
		   struct tensor_type *ret_type, char *ret_name);

/* Fill a place; `name` points to static storage per call site: pass a buffer
 * of NAME_MAX_SIZE + 1 bytes that lives as long as the place. */
void slot_place(const struct broker *broker, uint32_t slot, char *name_buffer,
		struct tensor_place *ret);

/* The memory under a slot, which it keeps whole. */
struct block_use {
	uint64_t id;      /* tells it apart from all other */
	uint64_t size;    /* bytes that are allocated, and charged to `uid` */
	uint32_t n_slots; /* tensors in it; of shared memory at least so many */
	uint32_t uid;
	uint32_t maker; /* session that allocated it; 0: it has ended */
};
struct block_use slot_block_use(const struct broker *broker, uint32_t slot);

/* Of its name; a member has that of its bundle. */
uint64_t slot_version(const struct broker *broker, uint32_t slot);

/* The access class of a slot's memory. */
struct access_class slot_access(const struct broker *broker, uint32_t slot);

/* The class in which a session's request makes memory: defaults filled in.
 * -EPERM: it is not in that group. */
int slot_resolve_access(const struct session *session,
			const struct access_class *asked,
			struct access_class *ret, struct error *err);

/*
 * May the session read memory of this class under `name`, and does it trust
 * who made it? Trusted are, unless the request names one, its own uid, root,
 * and the owner of the name's first component. -EACCES.
 */
int slot_check_reader(const struct session *session,
		      const struct access_class *class, const char *name,
		      const uint32_t *trusted_uid, struct error *err);
