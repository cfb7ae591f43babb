/*
 * Versions of names, as those see them who wait for a newer one than they had.
 * Every publication under a name adds 1; a name that was removed begins again
 * at 1.
 */
#pragma once
#include <stdint.h>

struct error;

enum version_outcome {
	VERSION_NEWER = 0,
	VERSION_HAD = 1, /* the caller had this very one */
};

/* Of a name that is at `version`. -ESTALE: that is below `newer_than`, so the
 * name was removed after the caller had seen it, and published again. */
int version_check(const char *name, uint64_t version, uint64_t newer_than,
		  struct error *err);

#define VERSION_TEXT 48

/* " (newer than version 7)", or "" if any version will do. */
void version_format(uint64_t newer_than, char ret[VERSION_TEXT]);
