/*
 * Public structs that may grow: each begins with its struct_size (fsdp.h,
 * "Structs that may grow"). Only this file handles callers that were built with
 * an older or a newer fsdp.h than the library.
 *
 * To add a field, append it at an offset that is not below the old sizeof (the
 * old padding was never initialised), and keep the old sizeof as `first`.
 */
#pragma once
#include <stddef.h>
#include <string.h>

struct error;

struct sized {
	const char *name;
	/* its size in the first release, for which a struct_size of 0 stands */
	size_t first;
	size_t desc; /* its size in this library */
};

#define SIZED(type)                                                            \
	((struct sized){.name = "struct " #type,                               \
			.first = sizeof(struct type),                          \
			.desc = sizeof(struct type)})

/* Do sized_take() for a struct whose size differs from ours. */
int sized_convert(void *ret, const void *given, struct sized type,
		  struct error *err);

/*
 * Copy the caller's struct to `ret`, a whole struct of ours. Fields that the
 * caller's struct does not have become 0; if `given` is NULL, all fields become
 * 0. -E2BIG: the caller's struct is larger than ours, and has nonzero fields
 * that we do not know. -EINVAL: it is smaller than in the first release.
 */
static inline int sized_take(void *ret, const void *given, struct sized type,
			     struct error *err)
{
	size_t size;

	if (!given) {
		memset(ret, 0, type.desc);
		return 0;
	}
	memcpy(&size, given, sizeof(size));
	if (size != type.desc && (size || type.first != type.desc))
		return sized_convert(ret, given, type, err);
	memcpy(ret, given, type.desc);
	memcpy(ret, &type.desc, sizeof(type.desc));
	return 0;
}

/* Do the same without a copy where possible. Returns `given` if it has our
 * size; otherwise `room`, a struct of ours, filled as by sized_take(), or NULL
 * with the errors of sized_take(). */
static inline const void *sized_look(void *room, const void *given,
				     struct sized type, struct error *err)
{
	size_t size;

	memcpy(&size, given, sizeof(size));
	if (size == type.desc || (size == 0 && type.first == type.desc))
		return given;
	return sized_convert(room, given, type, err) < 0 ? NULL : room;
}

/* Return the distance between two structs of a caller's array. */
size_t sized_stride(const void *array, struct sized type);

/* Do sized_take() for the i-th struct of an array that the caller calls `name`.
 * -EINVAL also if its size differs from that of the first struct. */
int sized_take_item(void *ret, const void *array, size_t i, const char *name,
		    struct sized type, struct error *err);

/* Do sized_give() for a struct whose size differs from ours. */
int sized_give_part(void *ret, const void *from, struct sized type,
		    struct error *err);

/*
 * Copy `from`, a whole struct of ours, to the caller's `ret` as far as it fits,
 * and store the number of copied bytes in its struct_size. -EINVAL: see
 * sized_take(); then `ret` has not changed.
 */
static inline int sized_give(void *ret, const void *from, struct sized type,
			     struct error *err)
{
	size_t size;

	memcpy(&size, ret, sizeof(size));
	if (size != type.desc)
		return sized_give_part(ret, from, type, err);
	memcpy(ret, from, type.desc);
	memcpy(ret, &type.desc, sizeof(type.desc));
	return 0;
}
