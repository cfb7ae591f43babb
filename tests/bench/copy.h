/*
 * Filling memory as fast as this machine can: memcpy, or stores that go past
 * the cache, whichever is quicker for the size.
 */
#pragma once
#include <stddef.h>

typedef void copy_fn(void *to, const void *from, size_t size);

/* Both pointers 64-byte aligned, `size` a multiple of 64. */
copy_fn copy_plain, copy_streaming;

/* The quicker one for these places, by trying both in turns. */
copy_fn *copy_choose(void *to, const void *from, size_t size);
