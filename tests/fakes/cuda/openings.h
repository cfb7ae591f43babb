/*
 * The files that drivers open at their start, as far as we know: the list was
 * not compared with what a real driver opens.
 */
#pragma once
#include <stdbool.h>

/* Open them, if FAKECUDA_HOME is set. Returns false, after a line on stderr, if
 * one is refused; those that the machine does not have are not. */
bool openings_are_allowed(void);
