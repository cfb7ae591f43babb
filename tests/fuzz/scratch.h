/*
 * Files that a fuzzed function opens by name, in a folder of /dev/shm that is
 * removed when the fuzzer ends.
 */
#pragma once
#include <stddef.h>
#include <stdint.h>

const char *scratch_folder(void);
/* Write (or replace) a file; `name` may have one folder before its slash. */
void scratch_write(const char *name, const uint8_t *data, size_t size);
/* The path of a file there, valid until the next call. */
const char *scratch_path(const char *name);
