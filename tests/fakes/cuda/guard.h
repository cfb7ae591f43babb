/*
 * Protection of device memory: only threads of streams may access it, if the
 * CPU has protection keys. So a program that dereferences a device pointer
 * dies, as it does with a driver. Without protection keys it does not. The
 * guard also turns a bad access by work of a stream into an error.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include <stdbool.h>
#include <stddef.h>

/* cuInit() calls it once. */
void guard_open(void);
/* Calls mprotect() for device memory. Returns 0 or -1. */
int guard_protect(void *address, size_t size, int protection);
/* Allow or forbid access to the calling thread. At first no thread has
 * access. */
void guard_allow(bool is_allowed);
/* Returns whether the CPU has protection keys. */
bool guard_has_keys(void);

/* Calls fn(data). Returns its result, or the result that was passed to
 * guard_trap(), or ILLEGAL_ADDRESS after an invalid access. Calls cannot be
 * nested. */
CUresult guard_run(CUresult (*fn)(void *), void *data);
__attribute__((noreturn)) void guard_trap(CUresult error);
