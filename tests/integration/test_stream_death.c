/*
 * Tests the order between streams when a producer, a consumer or the broker
 * dies. No stream waits for ever, and no reader uses contents that were not
 * written.
 */
#include "tests/lib/check.h"
#include "tests/lib/stage.h"
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>

TestSuite(stream_death, .init = stage_open, .fini = stage_close,
	  .timeout = 300);

static struct fsdp_tensor *get_tainted(const char *name)
{
	const struct fsdp_get_options options = {.accepts_tainted = true};
	struct fsdp_tensor *tensor = NULL;

	must(fsdp_get(stage.client, &name, 1, &options, &tensor) == 0);
	return tensor;
}

/* --- death --------------------------------------------------------------- */

static int note_taint(const struct fsdp_entry *entry, void *data)
{
	*(bool *)data = entry->info->is_tainted;
	return 0;
}

static int note_held_taint(const struct fsdp_holder *holder, void *data)
{
	*(bool *)data = holder->is_tainted;
	return 0;
}

Test(stream_death, streams_that_wait_for_a_dead_producer_continue_and_report_it)
{
	struct fsdp_tensor *tensor = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};
	bool is_tainted = false;
	CUstream stream;

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	stream = stream_make(gpu_nth(0));
	cr_assert(zero(int, get_on("t/a", stream, 0, &tensor)));
	actor_kill(&stage.producer);
	cr_assert(stream_finish(stream), "the stream was let go");
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EOWNERDEAD));
	cr_expect(ne(ptr, strstr(fsdp_error(), "t/a"), NULL), "%s",
		  fsdp_error());
	fsdp_tensor_info(tensor, &info);
	cr_expect(info.is_tainted);
	cr_assert(zero(
		int, fsdp_list(stage.client, "t/a", note_taint, &is_tainted)));
	cr_expect(is_tainted);
	cr_expect(daemon_shows(&stage.daemon, "ls t/a", " (tainted)"));
	cr_expect(daemon_shows(&stage.daemon, "stat t/a",
			       "tainted    its writer died"));
	is_tainted = false;
	cr_assert(zero(int, fsdp_who(stage.client, "t/a", note_held_taint,
				     &is_tainted)));
	cr_expect(is_tainted);
	cr_assert(zero(int, fsdp_release(tensor)));
	cr_expect(eq(int, fsdp_acquire(tensor), -EOWNERDEAD));
	fsdp_free(tensor);
}

Test(stream_death, a_tainted_tensor_is_returned_only_on_request)
{
	struct fsdp_tensor *tensor = NULL;
	uint8_t seen[STAGE_SIZE];

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	actor_kill(&stage.producer);
	cr_expect(eq(int, get_on("t/a", NULL, 10000, &tensor), -EOWNERDEAD));
	cr_expect(ne(ptr, strstr(fsdp_error(), "died"), NULL), "%s",
		  fsdp_error());
	tensor = get_tainted("t/a");
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EOWNERDEAD));
	cr_expect(eq(int, fsdp_tensor_wait(tensor, NULL, 0), -EOWNERDEAD));
	cr_expect(eq(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE),
		     -EOWNERDEAD));
	fsdp_free(tensor);
	remove_name("t/a");
	cr_expect(await_slots(0));
}

/* The first of these will never be written, and no digest is right. */
static int produce_with_digests(void)
{
	static const char *const names[] = {"t/b", "t/c"};
	const uint64_t digest = 1;
	CUstream stream = stream_make(gpu_nth(0));
	int r = 0;

	for (size_t i = 0; r == 0 && i < 2; i++) {
		struct fsdp_tensor *tensor = alloc();

		must(fsdp_set_digests(&tensor, &digest, 1) == 0);
		if (i == 0)
			stream_hold(stream, &stage.shared->gate);
		r = publish_on(tensor, names[i], i == 0 ? stream : NULL);
	}
	return r;
}

Test(stream_death, verify_counts_a_tainted_tensor_as_damaged_and_goes_on)
{
	cr_assert(zero(int, actor_run(&stage.producer, produce_with_digests)));
	actor_kill(&stage.producer);
	cr_expect(daemon_shows(&stage.daemon, "verify || :", "damaged: t/b"));
	cr_expect(daemon_shows(&stage.daemon, "verify || :", "damaged: t/c"));
	cr_expect(daemon_shows(&stage.daemon,
			       "verify || :", "2 tensors verified"));
}

Test(stream_death, verify_counts_what_is_not_written_yet_and_goes_on)
{
	cr_assert(zero(int, actor_run(&stage.producer, produce_with_digests)));
	cr_expect(daemon_shows(&stage.daemon, "verify 2>&1 || :",
			       "cannot verify 't/b': t/b is published"));
	cr_expect(daemon_shows(&stage.daemon, "verify || :", "damaged: t/c"));
	cr_expect(daemon_shows(&stage.daemon, "verify || :",
			       "1 tensor verified, 4.0 KiB; 1 could not be "
			       "read"));
	open_gate();
}

static void *wait_for_a(void *data)
{
	struct fsdp_tensor *tensor = NULL;

	*(int *)data = get_on("t/a", NULL, -1, &tensor);
	return NULL;
}

Test(stream_death, a_thread_that_waits_for_a_dead_producer_gets_an_error)
{
	pthread_t thread;
	int r = 0;

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	must(pthread_create(&thread, NULL, wait_for_a, &r) == 0);
	actor_kill(&stage.producer);
	pthread_join(thread, NULL);
	cr_expect(eq(int, r, -EOWNERDEAD));
}

Test(stream_death, a_tensor_written_before_its_producer_died_is_valid)
{
	struct fsdp_tensor *tensor = NULL;
	uint8_t seen[STAGE_SIZE];

	open_gate();
	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	cr_assert(zero(int, actor_run(&stage.producer, produce_finishes)));
	actor_kill(&stage.producer);
	cr_assert(zero(int, get_on("t/a", NULL, 0, &tensor)), "%s",
		  fsdp_error());
	cr_expect(zero(int, fsdp_tensor_check(tensor)));
	cr_assert(zero(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE)));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(tensor);
}

/* The reader asks after the session of the writer has ended. */
Test(stream_death, a_late_query_about_a_dead_producer_is_answered_correctly)
{
	struct fsdp_tensor *tensor = NULL;
	struct figures figures;
	CUstream stream;

	cr_assert(zero(int, actor_run(&stage.producer, produce_ticket)));
	cr_assert(zero(int,
		       fsdp_ticket_redeem(stage.client, &stage.shared->ticket,
					  1, &tensor)));
	open_gate();
	cr_assert(zero(int, actor_run(&stage.producer, produce_finishes)));
	actor_kill(&stage.producer);
	memset(&figures, 0xff, sizeof(figures));
	figures.sessions = 1;
	cr_assert(figures_await(stage.client, &figures));
	stream = stream_make(gpu_nth(0));
	cr_expect(zero(int, fsdp_tensor_wait(tensor, stream, 0)), "%s",
		  fsdp_error());
	cr_expect(zero(int, fsdp_tensor_check(tensor)), "%s", fsdp_error());
	fsdp_free(tensor);
}

Test(stream_death, a_replaced_tensor_is_not_tainted)
{
	struct fsdp_tensor *tensor = NULL;

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	actor_kill(&stage.producer);
	cr_expect(eq(int, get_on("t/a", NULL, 10000, &tensor), -EOWNERDEAD));
	tensor = alloc();
	cr_assert(zero(int, publish_on(tensor, "t/a", NULL)));
	fsdp_free(tensor);
	cr_assert(zero(int, get_on("t/a", NULL, 0, &tensor)), "%s",
		  fsdp_error());
	cr_expect(zero(int, fsdp_tensor_check(tensor)));
	fsdp_free(tensor);
}

/* Read without end in the other process, which is the consumer in this test. */
static int consume(void)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream = stream_make(gpu_nth(0));
	uint8_t *seen = pinned_memory(STAGE_SIZE);

	must(get_on("t/own", stream, 0, &tensor) == 0);
	stream_hold(stream, &stage.shared->gate);
	stream_read(stream, seen, tensor, STAGE_SIZE);
	return fsdp_release_on(tensor, stream);
}

Test(stream_death, a_dead_consumer_keeps_no_tensor)
{
	struct fsdp_tensor *tensor = alloc();

	cr_assert(zero(int, publish_on(tensor, "t/own", NULL)));
	cr_assert(zero(int, actor_run(&stage.producer, consume)));
	fsdp_free(tensor);
	remove_name("t/own");
	cr_expect(eq(u64, n_slots(), 1));
	actor_kill(&stage.producer);
	cr_expect(await_slots(0));
}

/* --- the broker's death -------------------------------------------------- */

Test(stream_death, fences_outlive_the_broker)
{
	struct fsdp_tensor *tensor = NULL, *mine[2];
	CUstream stream;
	uint8_t *seen;

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	stream = stream_make(gpu_nth(0));
	seen = pinned_memory(STAGE_SIZE);
	for (int i = 0; i < 2; i++)
		mine[i] = alloc();
	cr_assert(zero(int, publish_on(mine[0], "t/0", stream)));
	daemon_kill_broker(&stage.daemon);
	/* The new broker gets the wait, and the next publication. */
	cr_assert(zero(int, get_on("t/a", stream, 0, &tensor)), "%s",
		  fsdp_error());
	stream_read(stream, seen, tensor, STAGE_SIZE);
	cr_expect(not(stream_is_done(stream)));
	cr_assert(zero(int, publish_on(mine[1], "t/1", stream)), "%s",
		  fsdp_error());
	cr_assert(zero(int, fsdp_release_on(mine[0], stream)));
	for (int i = 0; i < 2; i++)
		fsdp_free(mine[i]);
	remove_name("t/0");
	remove_name("t/1");
	cr_expect(eq(u64, n_slots(), 3), "the stream is not done");
	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(tensor);
	remove_name("t/a");
	cr_assert(zero(int, actor_run(&stage.producer, produce_lets_go)));
	cr_expect(await_slots(0));
}

Test(stream_death, a_producer_that_dies_without_a_broker_taints_its_tensors)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream;
	pid_t broker = daemon_broker_pid(&stage.daemon);

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	stream = stream_make(gpu_nth(0));
	cr_assert(zero(int, get_on("t/a", stream, 0, &tensor)));
	/* The broker cannot see the death before it dies itself. */
	kill(broker, SIGSTOP);
	actor_kill(&stage.producer);
	kill(broker, SIGKILL);
	cr_assert(stream_finish(stream));
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EOWNERDEAD), "%s",
		  fsdp_error());
	fsdp_free(tensor);
}
