/*
 * Formats and parses numbers for people. Sizes use powers of 1024 and the
 * largest unit that leaves at least one digit before the point.
 */
#include "client/ctl/format.h"

#include "client/fsdp.h"
#include "proto/error.h"
#include "proto/tensor.h"

#include <errno.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <time.h>

/* Writes the digits and returns their end. printf() would take most of the time
 * of a list with millions of cells. */
static char *put_number(char *to, uint64_t n)
{
	char digits[20];
	size_t i = sizeof(digits);

	do {
		digits[--i] = (char)('0' + n % 10);
		n /= 10;
	} while (n);
	memcpy(to, digits + i, sizeof(digits) - i);
	return to + sizeof(digits) - i;
}

const char *format_number(uint64_t n, char buffer[FORMAT_SIZE])
{
	*put_number(buffer, n) = '\0';
	return buffer;
}

/* Returns the size in tenths of 1 << `shift` bytes. It rounds halves to even,
 * as printf() does. */
static uint64_t tenths_of(uint64_t size, unsigned int shift)
{
	uint64_t rest = (size & ((UINT64_C(1) << shift) - 1)) * 10;
	uint64_t half = UINT64_C(1) << (shift - 1);
	uint64_t tenths = (size >> shift) * 10 + (rest >> shift);

	rest &= (UINT64_C(1) << shift) - 1;
	return tenths + (rest > half || (rest == half && tenths % 2));
}

const char *format_size(uint64_t size, char buffer[FORMAT_SIZE])
{
	static const char *const units[] = {" KiB", " MiB", " GiB",
					    " TiB", " PiB", " EiB"};
	unsigned int i = 0;
	uint64_t tenths;
	char *end;

	if (size < 1024) {
		strcpy(put_number(buffer, size), " B");
		return buffer;
	}
	tenths = tenths_of(size, 10);
	while (tenths >= 10240 && i + 1 < sizeof(units) / sizeof(*units))
		tenths = tenths_of(size, 10 * (++i + 1));
	end = put_number(buffer, tenths / 10);
	*end++ = '.';
	strcpy(put_number(end, tenths % 10), units[i]);
	return buffer;
}

const char *format_count(uint64_t n, const char *noun, char buffer[FORMAT_SIZE])
{
	snprintf(buffer, FORMAT_SIZE, "%" PRIu64 " %s%s", n, noun,
		 n == 1 ? "" : "s");
	return buffer;
}

const char *format_age(uint64_t ms, char buffer[FORMAT_SIZE])
{
	static const struct {
		uint64_t below, unit;
		const char *name;
	} rows[] = {{1000, 1, " ms"},
		    {120 * 1000ull, 1000, " s"},
		    {120 * 60000ull, 60000, " min"},
		    {48 * 3600000ull, 3600000, " h"},
		    {UINT64_MAX, 86400000, " d"}};
	size_t i = 0;

	while (ms >= rows[i].below && i + 1 < sizeof(rows) / sizeof(*rows))
		i++;
	strcpy(put_number(buffer, ms / rows[i].unit), rows[i].name);
	return buffer;
}

const char *format_ns(uint64_t ns, char buffer[FORMAT_SIZE])
{
	if (ns < 1000000)
		snprintf(buffer, FORMAT_SIZE, "%.1f us", (double)ns / 1e3);
	else if (ns < 1000000000)
		snprintf(buffer, FORMAT_SIZE, "%.2f ms", (double)ns / 1e6);
	else
		snprintf(buffer, FORMAT_SIZE, "%.2f s", (double)ns / 1e9);
	return buffer;
}

const char *format_shape(const int64_t *shape, uint32_t n_dims,
			 char buffer[FORMAT_SHAPE])
{
	char *end = buffer;

	_Static_assert(TENSOR_MAX_DIMS * sizeof("-9223372036854775808, ") +
				       sizeof("[]") <=
			       FORMAT_SHAPE,
		       "each dimension fits");
	*end++ = '[';
	for (uint32_t i = 0; i < n_dims && i < TENSOR_MAX_DIMS; i++) {
		if (i)
			end = stpcpy(end, ", ");
		if (shape[i] < 0)
			*end++ = '-';
		end = put_number(end, shape[i] < 0 ? -(uint64_t)shape[i]
						   : (uint64_t)shape[i]);
	}
	strcpy(end, "]");
	return buffer;
}

const char *format_shared(enum fsdp_shared shared)
{
	switch (shared) {
	case FSDP_SHARED_DONATED:
		return "donated";
	case FSDP_SHARED_LEGACY:
		return "legacy";
	case FSDP_SHARED_NOT:
		break;
	}
	return "";
}

const char *format_place(const struct fsdp_info *info, enum fsdp_shared shared,
			 char buffer[FORMAT_SIZE])
{
	/* A UUID would fill half a line, so only its beginning is shown; stat
	 * shows all of it. */
	static const size_t width = sizeof("GPU-01234567") - 1;
	const char *kind = format_shared(shared);
	char text[FSDP_DEVICE_TEXT], *end = buffer;

	fsdp_device_format(&info->device, text);
	end = mempcpy(end, text, strnlen(text, width));
	if (*kind)
		end = stpcpy(stpcpy(end, " "), kind);
	strcpy(end, info->is_tainted ? " (tainted)" : "");
	return buffer;
}

const char *format_user(uint32_t uid, char buffer[FORMAT_SIZE])
{
	/* A look-up can take long, and most rows of a list have the same
	 * user. */
	static char name[FORMAT_SIZE];
	static uint32_t last;

	if (!*name || uid != last) {
		const struct passwd *user = getpwuid(uid);

		if (user)
			snprintf(name, sizeof(name), "%s", user->pw_name);
		else
			snprintf(name, sizeof(name), "%u", uid);
		last = uid;
	}
	return strcpy(buffer, name);
}

uint64_t format_now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

/* Parses the digits at `text`. `*ret_end` is the first character after them. */
static int read_digits(const char *text, uint64_t *ret, const char **ret_end)
{
	uint64_t value = 0;
	const char *p = text;

	for (; *p >= '0' && *p <= '9'; p++) {
		if (__builtin_mul_overflow(value, 10u, &value) ||
		    __builtin_add_overflow(value, (uint64_t)(*p - '0'), &value))
			return -ERANGE;
	}
	if (p == text)
		return -EINVAL;
	*ret = value;
	*ret_end = p;
	return 0;
}

/* A suffix that a number may have. */
struct unit {
	const char *name;
	uint64_t factor;
};

int format_read_number(const char *text, uint64_t *ret, struct error *err)
{
	const char *end;
	uint64_t value;
	int r = read_digits(text, &value, &end);

	if (r < 0 || *end)
		return error_set(err, r < 0 ? r : -EINVAL,
				 "'%s' is not a whole number", text);
	*ret = value;
	return 0;
}

/* Parses a number with a suffix. Returns false if it has another form or is too
 * large. */
static bool read_with_unit(const char *text, const struct unit *units, size_t n,
			   uint64_t *ret)
{
	const char *end;
	uint64_t value;

	if (read_digits(text, &value, &end) < 0)
		return false;
	for (size_t i = 0; i < n; i++)
		if (strcasecmp(end, units[i].name) == 0)
			return !__builtin_mul_overflow(value, units[i].factor,
						       ret);
	return false;
}

int format_read_time(const char *text, uint64_t *ret_ms, struct error *err)
{
	static const struct unit units[] = {
		{"", 1}, {"ms", 1}, {"s", 1000}, {"m", 60000}, {"h", 3600000}};

	if (read_with_unit(text, units, sizeof(units) / sizeof(*units), ret_ms))
		return 0;
	return error_set(err, -EINVAL,
			 "'%s' is not a time: give milliseconds, or a number "
			 "followed by ms, s, m or h",
			 text);
}

int format_read_size(const char *text, uint64_t *ret, struct error *err)
{
	static const struct unit units[] = {{"", 1},
					    {"K", UINT64_C(1) << 10},
					    {"M", UINT64_C(1) << 20},
					    {"G", UINT64_C(1) << 30},
					    {"T", UINT64_C(1) << 40}};

	if (read_with_unit(text, units, sizeof(units) / sizeof(*units), ret))
		return 0;
	return error_set(err, -EINVAL,
			 "'%s' is not a size: give bytes, or a number followed "
			 "by K, M, G or T",
			 text);
}

int format_read_shape(const char *text, struct tensor_type *type,
		      struct error *err)
{
	const char *p = text;
	uint64_t value;

	type->n_dims = 0;
	while (*p) {
		if (type->n_dims == TENSOR_MAX_DIMS)
			return error_set(err, -EINVAL,
					 "the shape '%s' has more than %d "
					 "dimensions",
					 text, TENSOR_MAX_DIMS);
		if (read_digits(p, &value, &p) < 0 || value > INT64_MAX ||
		    (*p && *p != ',') || (*p == ',' && !p[1]))
			return error_set(err, -EINVAL,
					 "'%s' is not a shape: give one such "
					 "as 4096,128",
					 text);
		type->shape[type->n_dims++] = (int64_t)value;
		p += *p == ',';
	}
	return 0;
}
