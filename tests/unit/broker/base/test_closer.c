/*
 * Tests that descriptors are closed even if a thread for that could not be made
 * at once.
 */
#include "broker/base/closer.h"
#include "proto/error.h"
#include "tests/lib/check.h"
#include <fcntl.h>
#include <stdlib.h>

#define USER 7

static uv_loop_t loop;
static struct closer closer;

static void on_change(void *data, uint32_t uid)
{
	(void)data;
	if (!closer_is_full(&closer, uid))
		uv_stop(&loop);
}

static void setup(void)
{
	struct error err = ERROR_NULL;

	cr_assert(zero(int, uv_loop_init(&loop)));
	cr_assert(zero(int, closer_init(&closer, &loop, on_change, NULL, &err)),
		  "%s", err.msg);
}

static void teardown(void)
{
	closer_stop(&closer);
	(void)uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(zero(int, uv_loop_close(&loop)));
	closer_deinit(&closer);
}

TestSuite(closer, .timeout = 300, .init = setup, .fini = teardown);

Test(closer, closes_descriptors_later_if_no_thread_can_be_created)
{
#ifndef FSDP_TEST_POINTS
	cr_skip_test("built without points");
#endif
	setenv("FSDP_FAIL_AT", "closer.thread:*:EAGAIN", 1);
	for (int i = 0; i < CLOSER_FULL; i++)
		closer_put(&closer, USER,
			   open("/dev/null", O_RDONLY | O_CLOEXEC));
	unsetenv("FSDP_FAIL_AT");
	cr_assert(closer_is_full(&closer, USER));
	/* Keep the loop running, although no other descriptor is sent. */
	uv_ref((uv_handle_t *)&closer.async);
	(void)uv_run(&loop, UV_RUN_DEFAULT);
	cr_expect(not(closer_is_full(&closer, USER)));
}
