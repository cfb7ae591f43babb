/*
 * Checks names.
 *
 * Bytes are checked before components, so that errors quote only names that are
 * safe to print.
 */
#include "proto/name.h"

#include "proto/error.h"
#include <errno.h>
#include <stdint.h>
#include <string.h>

/*
 * Returns the size of the character at `p`, at which `left` bytes remain.
 * Returns 0 if it is a control character or not valid UTF-8 (truncated,
 * overlong, a surrogate, too large).
 */
static size_t character_size(const uint8_t *p, size_t left)
{
	static const uint32_t smallest[] = {0, 0, 0xa0, 0x800, 0x10000};
	uint32_t code;
	size_t n;

	if (p[0] >= 0xf0 && p[0] < 0xf8)
		n = 4;
	else if (p[0] >= 0xe0 && p[0] < 0xf0)
		n = 3;
	else if (p[0] >= 0xc0 && p[0] < 0xe0)
		n = 2;
	else
		return p[0] >= 0x20 && p[0] < 0x7f;
	if (n > left)
		return 0;
	code = p[0] & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((p[i] & 0xc0) != 0x80)
			return 0;
		code = code << 6 | (p[i] & 0x3f);
	}
	/* U+0080 to U+009F are control characters, hence 0xa0 above. */
	if (code < smallest[n] || code > 0x10ffff ||
	    (code >= 0xd800 && code <= 0xdfff))
		return 0;
	return n;
}

/* Returns whether the 8 bytes at `p` are printable ASCII, as in most names. */
static bool is_plain(const uint8_t *p)
{
	const uint64_t ones = UINT64_C(0x0101010101010101);
	uint64_t x;

	memcpy(&x, p, sizeof(x));
	/* a high bit is set if a byte is not ASCII, is less than ' ', or is
	 * DEL */
	return ((x | (x - 0x20 * ones) | (x + ones)) & 0x80 * ones) == 0;
}

static bool are_plain(const uint8_t *p, size_t size)
{
	if (size < 8)
		return false;
	for (size_t i = 0; i + 8 <= size; i += 8)
		if (!is_plain(p + i))
			return false;
	return is_plain(p + size - 8);
}

static int check_bytes(const char *name, size_t size, struct error *err)
{
	const uint8_t *p = (const uint8_t *)name;
	size_t i = 0;

	if (are_plain(p, size))
		return 0;
	while (i < size) {
		size_t n = character_size(p + i, size - i);

		if (n == 0)
			return error_set(err, -EINVAL,
					 "a name has a control character or "
					 "bad UTF-8 at byte %zu",
					 i);
		i += n;
	}
	return 0;
}

static int check_components(const char *name, size_t size, struct error *err)
{
	const char *p = name, *end = name + size;
	unsigned n_components = 0;

	for (;;) {
		const char *slash = memchr(p, '/', (size_t)(end - p));
		const char *stop = slash ? slash : end;
		size_t n = (size_t)(stop - p);

		if (n == 0 || (n == 1 && p[0] == '.') ||
		    (n == 2 && p[0] == '.' && p[1] == '.'))
			return error_set(err, -EINVAL,
					 "name \"%s\" has a component that is "
					 "empty, \".\" or \"..\"",
					 name);
		if (++n_components > NAME_MAX_COMPONENTS)
			return error_set(err, -EINVAL,
					 "name \"%s\" has more than %d "
					 "components",
					 name, NAME_MAX_COMPONENTS);
		if (!slash)
			return 0;
		p = slash + 1;
	}
}

/* Checks the size and the bytes, for names of tensors and of bundles. */
static int check_form(const char *name, size_t *ret_size, struct error *err)
{
	size_t size = strnlen(name, NAME_MAX_SIZE + 1);

	*ret_size = size;
	if (size == 0)
		return error_set(err, -EINVAL,
				 "a name is empty; it needs 1 to %d bytes",
				 NAME_MAX_SIZE);
	if (size > NAME_MAX_SIZE)
		return error_set(err, -ENAMETOOLONG,
				 "a name is longer than %d bytes",
				 NAME_MAX_SIZE);
	return check_bytes(name, size, err);
}

int name_check(const char *name, struct error *err)
{
	size_t size;
	int r = check_form(name, &size, err);

	if (r < 0)
		return r;
	if (size > 1 && name_is_bundle(name))
		return error_set(err, -EINVAL,
				 "name \"%s\" ends in '/', as only the names "
				 "of bundles do",
				 name);
	return check_components(name, size, err);
}

int name_check_bundle(const char *name, struct error *err)
{
	size_t size;
	int r = check_form(name, &size, err);

	if (r < 0)
		return r;
	if (name[size - 1] != '/')
		return error_set(err, -EINVAL,
				 "\"%s\" is not the name of a bundle, which "
				 "ends in '/'",
				 name);
	return check_components(name, size - 1, err);
}

bool name_is_bundle(const char *name)
{
	size_t size = strlen(name);

	return size > 0 && name[size - 1] == '/';
}

size_t name_prefix_size(const char *name)
{
	return strcspn(name, "/");
}
