/*
 * Files of the configuration, which libinih reads.
 */
#pragma once
#include "broker/base/config.h"

/* Assigns all values of the file. `path` is borrowed by the configuration.
 * Errors name file and line; -ENOENT: there is no such file. */
int config_file_read(struct config *config, const char *path,
		     struct error *err);
