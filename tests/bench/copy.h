/*
 * Functions that fill memory as fast as this machine can: by memcpy, or by
 * stores that bypass the cache, whichever is quicker for the size.
 */
#pragma once
#include <stddef.h>

typedef void copy_fn(void *to, const void *from, size_t size);

/* Both pointers must be 64-byte aligned, and `size` a multiple of 64. */
copy_fn copy_plain, copy_streaming;

/* Try both ways in turn for these addresses, and return the quicker one. */
copy_fn *copy_choose(void *to, const void *from, size_t size);
