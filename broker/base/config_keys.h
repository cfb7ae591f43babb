/*
 * The table of keys: it drives reading, checking and printing, and the tests
 * compare the documents with it.
 *
 * Values are numbers: of bytes, of milliseconds, of things, a gid, or 1 for yes
 * and 0 for no.
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
	/* As in a file; NULL: config.c computes it. */
	const char *default_value;
};

extern const struct config_key config_keys[];
extern const size_t config_n_keys;

/* Find the key `name` of `section`, or, with NULL, of any section. */
const struct config_key *config_key_find(const char *section, const char *name);
bool config_is_section(const char *name);

uint64_t config_key_get(const struct config *config,
			const struct config_key *key);
/* Parse `text` and store the value. Returns -EINVAL, or the error of looking a
 * group up. */
int config_key_set(struct config *config, const struct config_key *key,
		   const char *text, struct error *err);
/* Write the value as config_key_set() takes it, in the largest unit that
 * fits. */
void config_key_print(const struct config *config, const struct config_key *key,
		      char ret[CONFIG_VALUE_SIZE]);

/* Look a user up, by name or number. */
int config_find_user(const char *name, uint32_t *ret, struct error *err);
