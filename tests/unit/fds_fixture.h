/*
 * The descriptors of a test's process.
 */
#pragma once

/* Returns how many are open. */
int count_fds(void);
