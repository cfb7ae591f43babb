#include "broker/base/config_keys.h"
#include "proto/error.h"
#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <pwd.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_TIME  (UINT64_C(1) << 40)
#define MAX_COUNT (UINT64_C(1) << 32)

/* --- the table ----------------------------------------------------------- */

/* clang-format off */
#define KEY(section, name, kind, default_value) \
	{#section, #name, kind, offsetof(struct config, name), default_value}

const struct config_key config_keys[] = {
	KEY(memory, memory_max, CONFIG_SIZE, NULL),
	KEY(memory, memory_reserve, CONFIG_SIZE, "256M"),
	KEY(memory, chunk_min, CONFIG_SIZE, "64M"),
	KEY(memory, chunk_max, CONFIG_SIZE, "16G"),
	KEY(memory, warm_ms, CONFIG_TIME, "30s"),
	KEY(memory, device_memory_max, CONFIG_SIZE, "0"),
	KEY(memory, device_quarantine_ms, CONFIG_TIME, "0"),
	KEY(quota, quota_bytes, CONFIG_SIZE, NULL),
	KEY(quota, quota_device_bytes, CONFIG_SIZE, "1024T"),
	KEY(quota, quota_slots, CONFIG_COUNT_1, "262144"),
	KEY(quota, quota_sessions, CONFIG_COUNT_1, "1024"),
	KEY(quota, sessions_reserved, CONFIG_SESSIONS, "16"),
	KEY(quota, quota_waiting, CONFIG_COUNT, "1024"),
	KEY(quota, quota_queue, CONFIG_SIZE, "64M"),
	KEY(quota, quota_prefixes, CONFIG_COUNT, "256"),
	KEY(quota, prefix_grace_ms, CONFIG_TIME, "5m"),
	KEY(quota, quota_chunks, CONFIG_COUNT_1, "256"),
	KEY(quota, quota_grants, CONFIG_COUNT_1, "2097152"),
	KEY(quota, quota_refs, CONFIG_SIZE, "1G"),
	KEY(quota, quota_tickets, CONFIG_COUNT, "65536"),
	KEY(quota, quota_bundles, CONFIG_COUNT, "1024"),
	KEY(quota, quota_groups, CONFIG_COUNT, "16384"),
	KEY(quota, quota_timelines, CONFIG_COUNT, "128"),
	KEY(access, admin_group, CONFIG_GROUP, ""),
	KEY(access, sandbox, CONFIG_BOOL, "yes"),
};
/* clang-format on */

#define N_KEYS (sizeof(config_keys) / sizeof(*config_keys))

const size_t config_n_keys = N_KEYS;

_Static_assert(N_KEYS <= CONFIG_MAX_KEYS, "an origin for each key");

const struct config_key *config_key_find(const char *section, const char *name)
{
	for (size_t i = 0; i < N_KEYS; i++) {
		if (strcmp(name, config_keys[i].name) == 0 &&
		    (!section || strcmp(section, config_keys[i].section) == 0))
			return &config_keys[i];
	}
	return NULL;
}

bool config_is_section(const char *name)
{
	for (size_t i = 0; i < N_KEYS; i++) {
		if (strcmp(name, config_keys[i].section) == 0)
			return true;
	}
	return strcmp(name, "prefixes") == 0;
}

/* --- numbers ------------------------------------------------------------- */

struct unit {
	const char *suffix;
	uint64_t factor;
};

/* The largest unit comes first, as config_key_print() needs it. */
static const struct unit sizes[] = {
	{"T", UINT64_C(1) << 40}, {"G", 1 << 30}, {"M", 1 << 20},
	{"K", 1 << 10},           {"", 1},        {NULL, 0},
};

static const struct unit times[] = {
	{"h", 3600000}, {"m", 60000}, {"s", 1000},
	{"ms", 1},      {"", 1},      {NULL, 0},
};

static const struct unit counts[] = {{"", 1}, {NULL, 0}};

static const char *const booleans[] = {"no", "yes"};

static const struct {
	const struct unit *units;
	uint64_t min, max;
	const char *what;
} kinds[] = {
	[CONFIG_SIZE] = {sizes, 0, CONFIG_MAX_SIZE,
			 "a size such as 512M or 16G"},
	[CONFIG_TIME] = {times, 0, MAX_TIME, "a time such as 500, 30s or 5m"},
	[CONFIG_COUNT] = {counts, 0, MAX_COUNT, "a whole number"},
	[CONFIG_COUNT_1] = {counts, 1, MAX_COUNT,
			    "a whole number of at least 1"},
	[CONFIG_SESSIONS] = {counts, 0, CONFIG_MAX_SESSIONS,
			     "a whole number below 4096"},
};

/* Parses a whole number with one of `units`, at most `max`. */
static bool parse_number(const char *text, const struct unit *units,
			 uint64_t max, uint64_t *ret)
{
	const char *digit = text;
	uint64_t n = 0;

	/* The digits are parsed here, since strtoull() would accept signs and
	 * leading blanks. */
	for (; *digit >= '0' && *digit <= '9'; digit++) {
		n = n * 10 + (uint64_t)(*digit - '0');
		if (n > max)
			return false;
	}
	if (digit == text)
		return false;
	for (; units->suffix; units++) {
		if (strcmp(digit, units->suffix) != 0)
			continue;
		if (n > max / units->factor)
			return false;
		*ret = n * units->factor;
		return true;
	}
	return false;
}

/* --- users and groups ---------------------------------------------------- */

enum { NAME_BUFFER_SIZE = 64 * 1024 };

/* Looks up a user or group. Returns 1 if it was found, 0 if it does not exist,
 * and a negative errno if the name service failed. */
static int look_up(const char *name, bool is_group, char *buffer, uint32_t *ret)
{
	struct passwd user, *found_user = NULL;
	struct group group, *found_group = NULL;
	int r;

	if (is_group)
		r = -getgrnam_r(name, &group, buffer, NAME_BUFFER_SIZE,
				&found_group);
	else
		r = -getpwnam_r(name, &user, buffer, NAME_BUFFER_SIZE,
				&found_user);
	if (found_group)
		*ret = group.gr_gid;
	if (found_user)
		*ret = user.pw_uid;
	return found_group || found_user ? 1 : r;
}

static int find_id(const char *name, bool is_group, uint32_t *ret,
		   struct error *err)
{
	const char *what = is_group ? "group" : "user";
	char *buffer = malloc(NAME_BUFFER_SIZE);
	uint64_t number;
	int r;

	if (!buffer)
		return error_nomem(err, "%s \"%s\"", what, name);
	r = look_up(name, is_group, buffer, ret);
	free(buffer);
	if (r > 0)
		return 0;
	if (parse_number(name, counts, UINT32_MAX - 1, &number)) {
		*ret = (uint32_t)number;
		return 0;
	}
	/* Name services report a missing entry in several ways. */
	if (r < 0 && r != -ENOENT && r != -ESRCH)
		return error_errno(err, r, "cannot look up %s \"%s\"", what,
				   name);
	return error_set(err, -EINVAL, "there is no %s \"%s\"", what, name);
}

int config_find_user(const char *name, uint32_t *ret, struct error *err)
{
	return find_id(name, false, ret, err);
}

/* An empty name means that no group is set. */
static int parse_group(const char *text, uint64_t *ret, struct error *err)
{
	uint32_t gid = 0;
	int r = 0;

	if (*text)
		r = find_id(text, true, &gid, err);
	if (r == 0)
		*ret = *text ? gid : CONFIG_NO_GROUP;
	return r;
}

static int parse_bool(const char *text, uint64_t *ret, struct error *err)
{
	for (uint64_t i = 0; i < 2; i++) {
		if (strcmp(text, booleans[i]) == 0) {
			*ret = i;
			return 0;
		}
	}
	return error_set(err, -EINVAL, "\"%s\" is neither yes nor no", text);
}

/* --- values -------------------------------------------------------------- */

uint64_t config_key_get(const struct config *config,
			const struct config_key *key)
{
	uint64_t value;

	memcpy(&value, (const char *)config + key->offset, sizeof(value));
	return value;
}

static int parse_quantity(const char *text, enum config_kind kind,
			  uint64_t *ret, struct error *err)
{
	if (!parse_number(text, kinds[kind].units, kinds[kind].max, ret) ||
	    *ret < kinds[kind].min)
		return error_set(err, -EINVAL, "\"%s\" is not %s", text,
				 kinds[kind].what);
	return 0;
}

int config_key_set(struct config *config, const struct config_key *key,
		   const char *text, struct error *err)
{
	uint64_t value = 0;
	int r;

	if (key->kind == CONFIG_GROUP)
		r = parse_group(text, &value, err);
	else if (key->kind == CONFIG_BOOL)
		r = parse_bool(text, &value, err);
	else
		r = parse_quantity(text, key->kind, &value, err);
	if (r < 0)
		return error_wrap(err, r, "%s", key->name);
	memcpy((char *)config + key->offset, &value, sizeof(value));
	return 0;
}

void config_key_print(const struct config *config, const struct config_key *key,
		      char ret[CONFIG_VALUE_SIZE])
{
	uint64_t value = config_key_get(config, key);
	const struct unit *unit = counts;

	if (key->kind == CONFIG_GROUP && value == CONFIG_NO_GROUP) {
		*ret = '\0';
		return;
	}
	if (key->kind == CONFIG_BOOL) {
		snprintf(ret, CONFIG_VALUE_SIZE, "%s", booleans[value]);
		return;
	}
	if (key->kind != CONFIG_GROUP && value > 0)
		unit = kinds[key->kind].units;
	while (value % unit->factor != 0)
		unit++;
	snprintf(ret, CONFIG_VALUE_SIZE, "%" PRIu64 "%s", value / unit->factor,
		 unit->suffix);
}
