/*
 * Suites whose tests must release what they allocate. Descriptors, shared
 * mappings and child processes are listed before the suite's set-up and after
 * its teardown. A test that leaves more than it found fails, with a list of the
 * leaks on stderr.
 *
 *	CHECKED_SUITE(client, setup, teardown, .timeout = 300);
 *
 * Criterion 2.4 does not count an assertion that fails in a teardown, so a leak
 * ends the process by SIGABRT. Criterion runs no teardown after a test that was
 * skipped.
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

/* Lists the resources of the process. */
void leaks_begin(void);
/* Ends the process if it has more resources than listed. */
void leaks_check(void);
