/*
 * Names of tensors and bundles: '/'-separated components, checked in one
 * place.
 *
 * A tensor's name has 1 to 255 bytes of UTF-8 without control characters, at
 * most 16 components, none of them empty, "." or "..". A bundle's name is such
 * a name with one '/' behind it, 255 bytes with it; its members' names begin
 * with it.
 */
#pragma once
#include <stdbool.h>
#include <stddef.h>

struct error;

#define NAME_MAX_SIZE       255
#define NAME_MAX_COMPONENTS 16

int name_check(const char *name, struct error *err);
int name_check_bundle(const char *name, struct error *err);

/* Is this the form of a bundle's name (ends in '/')? */
bool name_is_bundle(const char *name);

/* Bytes of the first component. */
size_t name_prefix_size(const char *name);
