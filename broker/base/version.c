/*
 * The versions of a name that are new to a client.
 */
#include "broker/base/version.h"
#include "proto/error.h"
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

int version_check(const char *name, uint64_t version, uint64_t newer_than,
		  struct error *err)
{
	if (version > newer_than)
		return VERSION_NEWER;
	if (version == newer_than)
		return VERSION_HAD;
	return error_set(err, -ESTALE,
			 "\"%s\" is at version %" PRIu64 ", below %" PRIu64
			 ": it was removed and published again; get it with a "
			 "newer_than of 0",
			 name, version, newer_than);
}

void version_format(uint64_t newer_than, char ret[VERSION_TEXT])
{
	ret[0] = '\0';
	if (newer_than)
		snprintf(ret, VERSION_TEXT, " (newer than version %" PRIu64 ")",
			 newer_than);
}
