/*
 * Names of tensors and bundles, which consist of components that '/' separates.
 *
 * The name of a tensor has 1 to 255 bytes of UTF-8 without control characters,
 * and at most 16 components, none of which is empty, "." or "..". The name of a
 * bundle is such a name with a '/' at its end, of at most 255 bytes in all. The
 * names of its members begin with it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct error;

#define NAME_MAX_SIZE       255
#define NAME_MAX_COMPONENTS 16

int name_check(const char *name, struct error *err);
int name_check_bundle(const char *name, struct error *err);

/* Returns whether the name has the form of a bundle's name, which ends in
 * '/'. */
bool name_is_bundle(const char *name);

/* Returns the size of the first component. */
size_t name_prefix_size(const char *name);
