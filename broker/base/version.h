/*
 * Versions of names, for clients that wait for a newer one than they had. Every
 * publication under a name adds 1; a name that was removed starts again at 1.
 */
#pragma once
#include <stdint.h>

struct error;

enum version_outcome {
	VERSION_NEWER = 0,
	VERSION_HAD = 1, /* the caller already has this version */
};

/* Compares the name's `version` with `newer_than`. Returns enum
 * version_outcome. -ESTALE: it is below that, so the name was removed after the
 * caller had seen it, and published again. */
int version_check(const char *name, uint64_t version, uint64_t newer_than,
		  struct error *err);

#define VERSION_TEXT 48

/* Writes " (newer than version 7)", or "" if any version is wanted. */
void version_format(uint64_t newer_than, char ret[VERSION_TEXT]);
