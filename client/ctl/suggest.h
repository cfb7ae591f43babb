/*
 * Finds the word that a mistyped word was probably meant to be.
 */
#pragma once
#include <stddef.h>

/* Returns the number of letters to insert, remove, replace or exchange with
 * their neighbour to turn `a` into `b`. Words longer than 31 letters always
 * count as different. */
size_t suggest_distance(const char *a, const char *b);
