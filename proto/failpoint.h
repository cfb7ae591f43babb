/*
 * Named places where a test can kill or stop the process or make a call fail.
 *
 * In the builds for tests (FSDP_TEST_POINTS) the environment decides:
 *   FSDP_KILL_AT=name        SIGKILL to ourselves when the place is passed,
 *   FSDP_KILL_TOKEN=path     ... but only if this file exists; it is unlinked
 *                            first, so that a restarted process survives;
 *   FSDP_KILL_PLAN=path   the same by a file with a line "name n" per death:
 *                         die at the n-th passage (from 1) since the line
 *                         became the first; it is taken away before;
 *   FSDP_STOP_PLAN=path   the same with SIGSTOP: the process stays at that
 *                         place until it gets SIGCONT or SIGKILL;
 *   FSDP_FAIL_AT=name:n:errno  the n-th passage of failpoint_fail() fails (from
 * 1; n = "*": every one); FSDP_FAIL_PLAN=path   the same by a file like that of
 * deaths, with lines "name n errno". FSDP_POINTS_LOG=path appends every name
 * passed, for tests that sweep them. In a release build all of it compiles to
 * nothing.
 */
#pragma once

#ifdef FSDP_TEST_POINTS
void failpoint(const char *name);
/* 0, or the negative errno with which the call that follows shall fail. */
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
