/*
 * Public structs that may grow: each begins with its struct_size (fsdp.h,
 * "Structs that may grow"). Callers built with an older or a newer fsdp.h than
 * the library are served here, and nowhere else.
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
	size_t first; /* sizeof in the first release: a struct_size of 0 */
	size_t known; /* sizeof in this library */
};

#define SIZED(type)                                                            \
	((struct sized){.name = "struct " #type,                               \
			.first = sizeof(struct type),                          \
			.known = sizeof(struct type)})

/* sized_take() of a struct whose size is not ours. */
int sized_convert(void *ret, const void *given, struct sized type,
		  struct error *err);

/*
 * Copy what the caller gave to `ret`, a whole struct of ours; fields that the
 * caller's lacks become 0, and so does everything if `given` is NULL. -E2BIG:
 * the caller's is larger, and not 0 beyond what we know. -EINVAL: it is smaller
 * than in the first release.
 */
static inline int sized_take(void *ret, const void *given, struct sized type,
			     struct error *err)
{
	size_t size;

	if (!given) {
		memset(ret, 0, type.known);
		return 0;
	}
	memcpy(&size, given, sizeof(size));
	if (size != type.known && (size || type.first != type.known))
		return sized_convert(ret, given, type, err);
	memcpy(ret, given, type.known);
	memcpy(ret, &type.known, sizeof(type.known));
	return 0;
}

/* The same for calls that may not cost a copy: gives `given` if that has our
 * size, else `room`, a struct of ours with what sized_take() would put there.
 * NULL: refused. */
static inline const void *sized_look(void *room, const void *given,
				     struct sized type, struct error *err)
{
	size_t size;

	memcpy(&size, given, sizeof(size));
	if (size == type.known || (size == 0 && type.first == type.known))
		return given;
	return sized_convert(room, given, type, err) < 0 ? NULL : room;
}

/* What lies between two structs of an array of the caller's. */
size_t sized_stride(const void *array, struct sized type);

/* sized_take() of the i-th struct of an array, which the caller calls `name`.
 * -EINVAL also if it is not as large as the first. */
int sized_take_item(void *ret, const void *array, size_t i, const char *name,
		    struct sized type, struct error *err);

/*
 * Copy `from`, a whole struct of ours, to the caller's `ret` as far as that
 * goes, and store in its struct_size how much of it was written. -EINVAL as
 * sized_take(); then nothing was written.
 */
int sized_give(void *ret, const void *from, struct sized type,
	       struct error *err);
