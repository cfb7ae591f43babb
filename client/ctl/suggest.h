/*
 * What a mistyped word was probably meant to be.
 */
#pragma once
#include <stddef.h>

/* Letters to insert, drop, change or swap to turn `a` into `b`; words longer
 * than 31 letters count as different. */
size_t suggest_distance(const char *a, const char *b);
