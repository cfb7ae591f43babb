/*
 * Converts between the sizes of a struct, like Linux's copy_struct_from_user()
 * for extensible system calls.
 */
#include "client/sized.h"
#include "proto/error.h"
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

/* No public struct will be larger, so a larger struct_size was not
 * initialised. */
#define MAX_SIZE 4096

static size_t size_of(const void *given, struct sized type)
{
	size_t size;

	memcpy(&size, given, sizeof(size));
	return size ? size : type.first;
}

static int check_size(size_t size, struct sized type, struct error *err)
{
	if (size > MAX_SIZE)
		return error_set(err, -E2BIG,
				 "cannot use a %s with a struct_size of %zu: "
				 "set struct_size to its sizeof",
				 type.name, size);
	if (size >= type.first)
		return 0;
	return error_set(err, -EINVAL,
			 "cannot use a %s with a struct_size of %zu: it has at "
			 "least %zu bytes; set struct_size to its sizeof",
			 type.name, size, type.first);
}

static bool is_zero(const uint8_t *bytes, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (bytes[i])
			return false;
	return true;
}

int sized_convert(void *ret, const void *given, struct sized type,
		  struct error *err)
{
	size_t size = size_of(given, type);
	size_t n_common = size < type.desc ? size : type.desc;
	int r = check_size(size, type, err);

	if (r < 0)
		return r;
	if (!is_zero((const uint8_t *)given + n_common, size - n_common))
		return error_set(err, -E2BIG,
				 "cannot use a %s of %zu bytes: this libfsdp "
				 "knows the first %zu, and the others are not "
				 "0; install a newer libfsdp",
				 type.name, size, type.desc);
	memset(ret, 0, type.desc);
	memcpy(ret, given, n_common);
	memcpy(ret, &type.desc, sizeof(type.desc));
	return 0;
}

size_t sized_stride(const void *array, struct sized type)
{
	return size_of(array, type);
}

int sized_take_item(void *ret, const void *array, size_t i, const char *name,
		    struct sized type, struct error *err)
{
	size_t stride = sized_stride(array, type);
	const void *item = (const uint8_t *)array + i * stride;
	int r = check_size(stride, type, err);

	if (r == 0 && size_of(item, type) != stride)
		return error_set(
			err, -EINVAL,
			"%s[%zu].struct_size differs from %s[0].struct_size; "
			"set both to the same value",
			name, i, name);
	if (r == 0)
		r = sized_take(ret, item, type, err);
	return r < 0 ? error_wrap(err, r, "%s[%zu]", name, i) : 0;
}

int sized_give_part(void *ret, const void *from, struct sized type,
		    struct error *err)
{
	size_t size = size_of(ret, type);
	int r = check_size(size, type, err);

	if (r < 0)
		return r;
	if (size > type.desc)
		size = type.desc;
	memcpy(ret, from, size);
	memcpy(ret, &size, sizeof(size));
	return 0;
}
