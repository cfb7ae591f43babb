#include "broker/base/config_assign.h"
#include "broker/base/config_keys.h"
#include "proto/error.h"
#include "proto/name.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int check_origin(const struct config_origin *origin, const char *path,
			const char *name, struct error *err)
{
	if (origin->path != path)
		return 0;
	return error_set(err, -EINVAL, "%s is set twice; keep one of the lines",
			 name);
}

static struct config_origin make_origin(struct config *config, const char *path,
					unsigned int line)
{
	return (struct config_origin){
		.path = path,
		.line = line,
		.order = ++config->n_set,
	};
}

static int assign_key(struct config *config, const struct config_key *key,
		      const char *value, const char *path, unsigned int line,
		      struct error *err)
{
	struct config_origin *origin = &config->origins[key - config_keys];
	int r;

	r = check_origin(origin, path, key->name, err);
	if (r == 0)
		r = config_key_set(config, key, value, err);
	if (r == 0)
		*origin = make_origin(config, path, line);
	return r;
}

static int check_prefix(const char *name, struct error *err)
{
	int r = name_check(name, err);

	if (r == 0 && strchr(name, '/'))
		r = error_set(err, -EINVAL,
			      "prefix \"%s\": only the first component of a "
			      "name can have an owner",
			      name);
	return r;
}

/* Finds the entry of a name, or makes one. */
static struct config_prefix *get_prefix(struct config *config, const char *name)
{
	struct config_prefix *prefixes, *prefix;

	for (size_t i = 0; i < config->n_prefixes; i++) {
		if (strcmp(config->prefixes[i].name, name) == 0)
			return &config->prefixes[i];
	}
	prefixes = reallocarray(config->prefixes, config->n_prefixes + 1,
				sizeof(*prefixes));
	if (!prefixes)
		return NULL;
	config->prefixes = prefixes;
	prefix = &prefixes[config->n_prefixes++];
	*prefix = (struct config_prefix){0};
	snprintf(prefix->name, sizeof(prefix->name), "%s", name);
	return prefix;
}

static int assign_prefix(struct config *config, const char *name,
			 const char *value, const char *path, unsigned int line,
			 struct error *err)
{
	struct config_prefix *prefix;
	uint32_t uid = UINT32_MAX;
	int r;

	r = check_prefix(name, err);
	if (r < 0)
		return r;
	r = config_find_user(value, &uid, err);
	if (r < 0)
		return error_wrap(err, r, "prefix \"%s\"", name);
	prefix = get_prefix(config, name);
	if (!prefix)
		return error_nomem(err, "prefix \"%s\"", name);
	r = check_origin(&prefix->origin, path, name, err);
	if (r < 0)
		return r;
	prefix->uid = uid;
	prefix->origin = make_origin(config, path, line);
	return 0;
}

int config_assign(struct config *config, const char *section, const char *name,
		  const char *value, const char *path, unsigned int line,
		  struct error *err)
{
	const struct config_key *key;

	if (section && !*section)
		return error_set(err, -EINVAL,
				 "the key \"%s\" is in no section; write "
				 "[memory], [quota], [access] or [prefixes] "
				 "above it",
				 name);
	if (section && strcmp(section, "prefixes") == 0)
		return assign_prefix(config, name, value, path, line, err);
	key = config_key_find(section, name);
	if (key)
		return assign_key(config, key, value, path, line, err);
	if (!section)
		return error_set(
			err, -EINVAL,
			"there is no key \"%s\"; fsdpd.conf(5) lists the keys",
			name);
	return error_set(
		err, -EINVAL,
		"there is no key \"%s\" in [%s]; fsdpd.conf(5) lists the keys",
		name, section);
}
