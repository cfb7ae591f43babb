/*
 * Files of the configuration, read by libinih.
 */
#pragma once
#include "broker/base/config.h"

/* Assign what the file has. `path` is borrowed by the configuration. Errors
 * name file and line; -ENOENT: there is no such file. */
int config_file_read(struct config *config, const char *path,
		     struct error *err);
