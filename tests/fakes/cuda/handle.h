/*
 * Handles, which the driver gives out instead of pointers. They cannot be
 * dereferenced and are never reused. Stale or invented handles are refused.
 *
 * The caller of each function holds the process's lock.
 */
#pragma once
#include <stdint.h>

enum handle_kind {
	HANDLE_CONTEXT = 1,
	HANDLE_STREAM,
	HANDLE_EVENT,
	HANDLE_ALLOCATION,
	HANDLE_LIBRARY,
	HANDLE_KERNEL,
	HANDLE_FUNCTION,
	N_HANDLE_KINDS,
};

/* `object` is borrowed until handle_free(). */
uint64_t handle_new(enum handle_kind kind, void *object);
/* Returns NULL if there is no object of that kind. */
void *handle_find(enum handle_kind kind, uint64_t handle);
void handle_free(enum handle_kind kind, uint64_t handle);
unsigned int handle_count(enum handle_kind kind);
