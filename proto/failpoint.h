/*
 * Failpoints: named places where a test can kill or stop the process or make a
 * call fail.
 *
 * In builds for tests (FSDP_TEST_POINTS) environment variables control them:
 *   FSDP_KILL_AT=NAME      The process kills itself by SIGKILL at NAME.
 *   FSDP_KILL_TOKEN=PATH   ... but only if this file exists. It is unlinked
 *                          first, so that a restarted process survives.
 *   FSDP_KILL_PLAN=PATH    The file has a line "NAME N" for each death. The
 *                          process dies when it passes NAME for the N-th time
 *                          (from 1) after the line became the first one. The
 *                          line is removed before.
 *   FSDP_STOP_PLAN=PATH    The same with SIGSTOP: the process stops there until
 *                          it gets SIGCONT or SIGKILL.
 *   FSDP_FAIL_AT=NAME:N:ERRNO
 *                          The N-th call of failpoint_fail() with NAME fails
 *                          (from 1; "*" means each call).
 *   FSDP_FAIL_PLAN=PATH    The same by a file with lines "NAME N ERRNO".
 *   FSDP_POINTS_LOG=PATH   Each name that is passed is appended to this file,
 *                          for tests that try all failpoints.
 *
 * In release builds failpoints compile to nothing.
 */
#pragma once

#ifdef FSDP_TEST_POINTS
void failpoint(const char *name);
/* Returns 0, or the negative errno with which the next call must fail. */
int failpoint_fail(const char *name);
#else
static inline void failpoint(const char *name)
{
	(void)name;
}
static inline int failpoint_fail(const char *name)
{
	(void)name;
	return 0;
}
#endif
