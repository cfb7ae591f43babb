/*
 * One assignment of the configuration, which is a line of a file or a setting
 * on the command line.
 */
#pragma once
#include "broker/base/config.h"

/*
 * Gives a value to a key, or to an entry of [prefixes]. `section` NULL stands
 * for any section except [prefixes]. A second assignment from the same `path`
 * is refused; one from another path replaces the first. `path` is borrowed by
 * the configuration.
 */
int config_assign(struct config *config, const char *section, const char *name,
		  const char *value, const char *path, unsigned int line,
		  struct error *err);
