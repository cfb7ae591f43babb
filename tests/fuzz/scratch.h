/*
 * Makes files for a fuzzed function that opens files by name. They are in a
 * folder of /dev/shm that is removed when the fuzzer ends.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

const char *scratch_folder(void);
/* Write or replace a file. `name` may be in one folder. */
void scratch_write(const char *name, const uint8_t *data, size_t size);
/* Returns the path of a file there, which is valid until the next call. */
const char *scratch_path(const char *name);
