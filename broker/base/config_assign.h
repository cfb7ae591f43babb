/*
 * One assignment of the configuration: what a line of a file, or a setting of
 * the command line, does.
 */
#pragma once
#include "broker/base/config.h"

/*
 * Give a key, or an entry of [prefixes], a value. `section` NULL: any, except
 * [prefixes]. A second assignment from the same `path` is refused; one from
 * another path replaces the first. `path` is borrowed by the configuration.
 */
int config_assign(struct config *config, const char *section, const char *name,
		  const char *value, const char *path, unsigned int line,
		  struct error *err);
