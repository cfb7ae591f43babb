/*
 * Memory that a forked child does not have (MADV_DONTFORK). The kernel leaves
 * its addresses free in the child, so that an old pointer would soon show other
 * memory. Here they stay taken by pages without access: the child gets SIGSEGV
 * instead of wrong bytes. No atfork handler runs in a child that was made by a
 * raw clone(), so its addresses are free.
 */
#pragma once
#include <stddef.h>

/* Hide mapped memory from children. -errno: nothing changed. */
int hidden_add(void *address, size_t size);

/* Forget memory that was unmapped, replaced or is going to be; other memory is
 * ignored. */
void hidden_forget(const void *address);
