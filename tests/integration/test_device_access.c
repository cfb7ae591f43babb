/*
 * Tests tensors on a device between two users, each in a process of its own. A
 * user that may read waits for streams of the other user, and can write neither
 * the memory nor the timelines. If the device can register read-only pages, the
 * reader's stream waits; otherwise the reader's call waits.
 */
#include "tests/lib/check.h"
#include "tests/lib/stage.h"
#include "tests/lib/strike.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct identity SOMEBODY = {.uid = 61001, .gid = 61001};
static const struct fsdp_access FOR_ALL = {FSDP_GID_DEFAULT, 0644};
static const struct fsdp_spec BYTES = {FSDP_U8, 1, {STAGE_SIZE}};

static struct actor somebody;

static int connect_somebody(void)
{
	open_client();
	return 0;
}

/* Only root can run a process as another user. */
static void open_for_two(void)
{
	if (!actor_may_be_others())
		return;
	stage_open();
	must(chmod(stage.daemon.dir, 0755) == 0);
	must(chmod(getenv("FAKECUDA_DIR"), 0777) == 0);
	actor_start(&somebody, &SOMEBODY);
	must(actor_run(&somebody, connect_somebody) == 0);
}

static void open_with_readonly(void)
{
	setenv("FAKECUDA_WITH", "readonly_register", 1);
	open_for_two();
}

static void close_for_two(void)
{
	if (!actor_may_be_others())
		return;
	actor_kill(&somebody);
	stage_close();
}

TestSuite(device_access, .init = open_for_two, .fini = close_for_two,
	  .timeout = 300);
TestSuite(device_access_readonly, .init = open_with_readonly,
	  .fini = close_for_two, .timeout = 300);

static void need_root(void)
{
	if (!actor_may_be_others())
		cr_skip_test("needs root, to be two users");
}

/* Skip the test unless the device can register pages read-only, or unless it
 * cannot. The skip omits the teardown. */
static void need_readonly(bool is_able)
{
	need_root();
	if (gpu_nth(0)->has_readonly_register == is_able)
		return;
	close_for_two();
	cr_skip_test("needs a device that %s (attribute 113)",
		     is_able ? "registers pages read-only"
			     : "cannot register pages read-only");
}

/* Publish a tensor of the first user, which is written when the gate opens. */
static void publish_late(const struct fsdp_access *access)
{
	CUstream stream = stream_make(gpu_nth(0));
	struct fsdp_device gpu = gpu_name(0);
	struct fsdp_tensor *tensor = NULL;
	uint8_t zeros[STAGE_SIZE] = {0};

	must(fsdp_alloc_on(stage.client, &gpu, &BYTES, 1, access, 0, &tensor) ==
	     0);
	must(fsdp_copy_in(tensor, 0, zeros, STAGE_SIZE) == 0);
	stream_hold(stream, &stage.shared->gate);
	stream_fill(stream, tensor, STAGE_VALUE);
	must(publish_on(tensor, "t/a", stream) == 0);
	fsdp_free(tensor);
}

/* Do the same in a process that the test can kill. */
static int produce_for_all(void)
{
	publish_late(&FOR_ALL);
	return 0;
}

/* --- in the other user's process ----------------------------------------- */

static struct fsdp_tensor *tensor;
static CUstream reader;
static uint8_t *seen;

static int get_within(int32_t timeout_ms)
{
	reader = stream_make(gpu_nth(0));
	seen = pinned_memory(STAGE_SIZE);
	return get_on("t/a", reader, timeout_ms, &tensor);
}

static int begin_to_read(void)
{
	int r = get_within(0);

	if (r < 0)
		return r;
	stream_read(reader, seen, tensor, STAGE_SIZE);
	return stream_is_done(reader) ? -EALREADY : 0;
}

static int read_at_once(void)
{
	return get_within(0);
}

static int read_for_a_moment(void)
{
	int r = get_within(30);

	return r == -ETIMEDOUT && !strstr(fsdp_error(), "another user") ? -EIO
									: r;
}

static int give_up(void *unused)
{
	(void)unused;
	return 1;
}

/* Read by a connection that is interrupted. */
static int read_interrupted(void)
{
	const struct fsdp_connect_options options = {
		.path = stage.shared->socket, .interrupted = give_up};

	fsdp_close(stage.client);
	must(fsdp_connect(&options, &stage.client) == 0);
	return get_within(-1);
}

static int read_when_it_is_there(void)
{
	int r = get_within(-1);

	if (r < 0)
		return r;
	must(!maps_timelines_writable());
	stream_read(reader, seen, tensor, STAGE_SIZE);
	return 0;
}

static int end_to_read(void)
{
	must(stream_finish(reader));
	must(!fsdp_data_mut(tensor));
	must(fsdp_release_on(tensor, reader) == 0);
	return is_filled(seen, STAGE_SIZE, STAGE_VALUE) ? 0 : -EIO;
}

static int write_it(void)
{
	must(strike(gpu_nth(0), (CUdeviceptr)(uintptr_t)fsdp_data(tensor),
		    reader) == 0);
	return stream_finish(reader) ? 0 : -EFAULT;
}

/* --- a device that registers pages read-only ----------------------------- */

Test(device_access_readonly, a_stream_of_another_user_waits_as_well)
{
	need_readonly(true);
	publish_late(&FOR_ALL);
	cr_assert(zero(int, actor_run(&somebody, begin_to_read)));
	open_gate();
	cr_expect(zero(int, actor_run(&somebody, end_to_read)));
}

/* --- and one that does not ----------------------------------------------- */

Test(device_access, the_call_waits_if_the_stream_cannot_wait)
{
	need_readonly(false);
	publish_late(&FOR_ALL);
	actor_begin(&somebody, read_when_it_is_there);
	open_gate();
	cr_assert(zero(int, actor_end(&somebody)));
	cr_expect(zero(int, actor_run(&somebody, end_to_read)));
}

Test(device_access, the_call_waits_no_longer_than_its_time_out)
{
	need_readonly(false);
	publish_late(&FOR_ALL);
	cr_expect(eq(int, actor_run(&somebody, read_at_once), -ETIMEDOUT));
	cr_expect(eq(int, actor_run(&somebody, read_for_a_moment), -ETIMEDOUT));
	open_gate();
	cr_assert(zero(int, actor_run(&somebody, read_when_it_is_there)));
	cr_expect(zero(int, actor_run(&somebody, end_to_read)));
}

Test(device_access, the_call_can_be_interrupted)
{
	need_readonly(false);
	publish_late(&FOR_ALL);
	cr_expect(eq(int, actor_run(&somebody, read_interrupted), -EINTR));
	open_gate();
}

Test(device_access, the_call_gets_an_error_when_the_producer_dies)
{
	need_root();
	must(actor_run(&stage.producer, produce_for_all) == 0);
	actor_begin(&somebody, read_when_it_is_there);
	actor_kill(&stage.producer);
	cr_expect(eq(int, actor_end(&somebody), -EOWNERDEAD));
}

Test(device_access,
     a_tensor_without_permission_to_read_is_not_granted_to_others)
{
	need_root();
	publish_late(NULL);
	cr_expect(eq(int, actor_run(&somebody, begin_to_read), -EACCES));
	open_gate();
}

Test(device_access, a_write_of_another_user_is_a_fault)
{
	struct fsdp_tensor *mine = NULL;
	uint8_t bytes[STAGE_SIZE];

	need_root();
	need_kernels();
	publish_late(&FOR_ALL);
	open_gate();
	must(actor_run(&somebody, read_when_it_is_there) == 0);
	cr_expect(eq(int, actor_run(&somebody, write_it), -EFAULT));
	cr_assert(zero(int, get_on("t/a", NULL, -1, &mine)));
	cr_assert(zero(int, fsdp_copy_out(bytes, mine, 0, STAGE_SIZE)));
	cr_expect(is_filled(bytes, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(mine);
}
