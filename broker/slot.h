/*
 * The life of a slot: one version of one tensor.
 *
 *   FREE -> WRITING -> PUBLISHED <-> LIMBO -> FREE, and WRITING -> LIMBO
 *
 * A slot is kept by its writer, by a name that shows it, or by a ticket. What
 * nothing keeps is in LIMBO and lives only as long as some session holds it.
 * The state is a function of the keepers: callers change keepers and then call
 * slot_settle(), the one place that stores the table word, moves slots into
 * and out of the limbo list, and frees.
 *
 * (A view or anonymous tensor is in LIMBO from birth. Groups of a collective
 * will be one more keeper.)
 */
#pragma once
#include "broker/catalog.h"
#include <stdbool.h>
#include <stdint.h>

struct broker;
struct error;

/*
 * A new slot over `block` with `type` (checked, its span is `size`), `offset`
 * bytes into the block, and the name it will have ("": none). `writer` 0: born
 * in LIMBO (the caller grants it before slot_settle()). 0 if the catalog is
 * full.
 */
uint32_t slot_new(struct broker *broker, uint32_t block, uint64_t offset,
		  uint64_t size, const struct tensor_type *type,
		  const char *name, uint32_t writer);

/* State by its keepers; FREE if the record is. */
enum slot_state slot_state(const struct broker *broker, uint32_t slot);

/*
 * Bring word, limbo list and memory in line with keepers and holds. Frees the
 * slot (and its block, if it was the last there) when nothing keeps it and
 * nobody holds it. True: it was freed.
 */
bool slot_settle(struct broker *broker, uint32_t slot);

/* Sum of granted + delta over sessions, none counted below 0. */
bool slot_is_held(const struct broker *broker, uint32_t slot);

/* The slot if `ref` is a live one, else 0 with -ESTALE in `err`. */
uint32_t slot_find(const struct broker *broker, const struct slot_ref *ref,
		   struct error *err);

/* Change the name a slot carries (not the index): publish of an anonymous or
 * freshly allocated slot. False: no room in the catalog. */
bool slot_rename(struct broker *broker, uint32_t slot, const char *name);

/* Name and type of a slot; the name is copied to `ret_name` (NAME_MAX_SIZE +
 * 1 bytes), either may be NULL. */
void slot_describe(const struct broker *broker, uint32_t slot,
		   struct tensor_type *ret_type, char *ret_name);

/* Fill a place; `name` points to static storage per call site: pass a buffer
 * of NAME_MAX_SIZE + 1 bytes that lives as long as the place. */
void slot_place(const struct broker *broker, uint32_t slot, char *name_buffer,
		struct tensor_place *ret);

/* The access class of a slot's memory. */
struct access_class slot_access(const struct broker *broker, uint32_t slot);
