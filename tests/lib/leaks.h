/*
 * Suites whose tests must give back what they took: descriptors, shared
 * mappings and child processes are listed before the suite's set-up and after
 * its teardown, and a test that leaves more than it found fails, with a list of
 * it on stderr.
 *
 *	CHECKED_SUITE(client, setup, teardown, .timeout = 60);
 *
 * Criterion 2.4 counts no assertion that fails in a teardown, so a leak ends
 *the process by SIGABRT. It runs no teardown after a test that was skipped.
 */
#pragma once
#include <criterion/criterion.h>

#define CHECKED_SUITE(suite, setup, teardown, ...)                             \
	static void suite##_checked_init(void)                                 \
	{                                                                      \
		leaks_begin();                                                 \
		setup();                                                       \
	}                                                                      \
	static void suite##_checked_fini(void)                                 \
	{                                                                      \
		teardown();                                                    \
		leaks_check();                                                 \
	}                                                                      \
	TestSuite(suite, .init = suite##_checked_init,                         \
		  .fini = suite##_checked_fini, __VA_ARGS__)

/* List what the process has. */
void leaks_begin(void);
/* End it if it has more. */
void leaks_check(void);
