/*
 * The files that drivers open when they start, as far as we know. The list was
 * not compared with the files that a real driver opens.
 */
#pragma once
#include <stdbool.h>

/* Opens them, if FAKECUDA_HOME is set. Returns false, after a line on stderr,
 * if the process may not open one. Files that the machine does not have are
 * ignored. */
bool openings_are_allowed(void);
