/*
 * The table of keys: it drives reading, checking and printing, and the tests
 * compare the documents with it.
 *
 * Values are numbers: of bytes, of milliseconds, or of objects, a gid, or 1 for
 * yes and 0 for no.
 */
#pragma once
#include "broker/base/config.h"

enum config_kind {
	CONFIG_SIZE,
	CONFIG_TIME,
	CONFIG_COUNT,
	CONFIG_COUNT_1, /* at least 1 */
	CONFIG_SESSIONS,
	CONFIG_GROUP,
	CONFIG_BOOL,
};

struct config_key {
	const char *section, *name;
	enum config_kind kind;
	size_t offset; /* of the uint64_t in struct config */
	/* The text as in a file; NULL: config.c computes the default. */
	const char *default_value;
};

extern const struct config_key config_keys[];
extern const size_t config_n_keys;

/* Finds the key `name` of `section`, or, if `section` is NULL, of any
 * section. */
const struct config_key *config_key_find(const char *section, const char *name);
bool config_is_section(const char *name);

uint64_t config_key_get(const struct config *config,
			const struct config_key *key);
/* Parses `text` and stores the value. Returns -EINVAL, or the error of the
 * look-up of a group. */
int config_key_set(struct config *config, const struct config_key *key,
		   const char *text, struct error *err);
/* Writes the value as config_key_set() takes it, in the largest unit that
 * divides it. */
void config_key_print(const struct config *config, const struct config_key *key,
		      char ret[CONFIG_VALUE_SIZE]);

/* Looks a user up, by name or number. */
int config_find_user(const char *name, uint32_t *ret, struct error *err);
