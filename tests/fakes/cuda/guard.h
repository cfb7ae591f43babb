/*
 * Who may touch device memory: threads of streams, and nobody else, as far as
 * the CPU has protection keys. So a program that dereferences a device pointer
 * dies, as it does with a driver. Without such keys it does not.
 *
 * And what becomes of a bad access by work of a stream: an error.
 */
#pragma once
#include "tests/fakes/cuda/api.h"
#include <stdbool.h>
#include <stddef.h>

/* Once, by cuInit(). */
void guard_open(void);
/* mprotect() for device memory. 0 or -1. */
int guard_protect(void *address, size_t size, int protection);
/* May the calling thread touch it? None may at first. */
void guard_allow(bool is_allowed);
/* Does the CPU have keys? */
bool guard_has_keys(void);

/* Call fn(data); its result, or what guard_trap() said, or ILLEGAL_ADDRESS if
 * it touched what it must not. Not nested. */
CUresult guard_run(CUresult (*fn)(void *), void *data);
__attribute__((noreturn)) void guard_trap(CUresult error);
