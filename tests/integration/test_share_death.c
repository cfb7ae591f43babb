/*
 * Tests shared memory when the process that shared it, one that uses it, or the
 * broker dies.
 */
#include "tests/lib/check.h"
#include "tests/lib/gpu.h"
#include "tests/lib/impatient.h"
#include "tests/lib/sharing.h"
#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

TestSuite(share_death, .init = sharing_open, .fini = sharing_close,
	  .timeout = 300);

static int have(struct actor *actor, actor_fn *fn, const char *name)
{
	strcpy(sharing.page->name, name);
	return actor_run(actor, fn);
}

static bool await_sessions(uint64_t n)
{
	struct figures figures;

	memset(&figures, 0xff, sizeof(figures));
	figures.sessions = n;
	return figures_await(sharing.client, &figures);
}

/* --- the process that shared it ------------------------------------------ */

Test(share_death, memory_of_a_dead_producer_is_lost)
{
	struct fsdp_tensor *tensor = NULL, *none = NULL;
	struct fsdp_info info = {.struct_size = sizeof(info)};
	uint8_t byte;

	must(have(&sharing.one, actor_shares, "t/a") == 0);
	must(try_get("t/a", &tensor) == 0);
	cr_expect(zero(int, fsdp_tensor_check(tensor)));
	must(fsdp_ticket_make(tensor, 1, 60000, &sharing.page->ticket) == 0);
	actor_kill(&sharing.one);
	cr_assert(await_sessions(2));
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EOWNERDEAD));
	cr_expect(says("t/a") && says("ended"), "%s", fsdp_error());
	cr_expect(eq(int, fsdp_tensor_wait(tensor, NULL, 0), -EOWNERDEAD));
	cr_expect(eq(int, fsdp_copy_out(&byte, tensor, 0, 1), -EOWNERDEAD));
	fsdp_tensor_info(tensor, &info);
	cr_expect(info.is_tainted);
	cr_expect(eq(int, try_get("t/a", &none), -ENOENT));
	cr_expect(eq(int, actor_run(&sharing.two, actor_redeems), -ENOENT),
		  "%s", sharing.page->sentence);
	cr_assert(zero(int, fsdp_release(tensor)));
	cr_expect(lt(int, fsdp_acquire(tensor), 0));
	fsdp_free(tensor);
	cr_expect(nothing_is_left(2), "what was held is let go");
}

Test(share_death, a_tensor_without_holders_ends_with_its_producer)
{
	must(have(&sharing.one, actor_shares, "t/a") == 0);
	must(have(&sharing.two, actor_gets, "t/a") == 0);
	must(actor_run(&sharing.two, actor_lets_go) == 0);
	actor_kill(&sharing.one);
	cr_expect(nothing_is_left(2));
}

static int publish_view(void)
{
	const struct fsdp_spec spec = {FSDP_U8, 1, {16}};
	struct fsdp_tensor *tensor = NULL, *view = NULL;

	must(try_get("t/a", &tensor) == 0);
	must(fsdp_view(tensor, &spec, NULL, 64, &view) == 0);
	must(publish_as(view, "t/view") == 0);
	fsdp_free(view);
	fsdp_free(tensor);
	return 0;
}

Test(share_death, views_end_with_the_memory_whichever_process_made_them)
{
	struct fsdp_tensor *none = NULL;

	must(have(&sharing.one, actor_shares, "t/a") == 0);
	must(actor_run(&sharing.two, publish_view) == 0);
	must(try_get("t/view", &none) == 0);
	actor_kill(&sharing.one);
	cr_assert(await_sessions(2));
	cr_expect(eq(int, fsdp_tensor_check(none), -EOWNERDEAD));
	fsdp_free(none);
	cr_expect(eq(int, try_get("t/view", &none), -ENOENT));
	cr_expect(nothing_is_left(2));
}

Test(share_death, donated_memory_outlives_its_producer)
{
	struct fsdp_tensor *tensor = NULL;

	sharing.page->value = 9;
	must(have(&sharing.one, actor_donates, "t/a") == 0);
	actor_kill(&sharing.one);
	cr_assert(await_sessions(2));
	cr_assert(zero(int, try_get("t/a", &tensor)), "%s", fsdp_error());
	cr_expect(holds_value(tensor, 9));
	cr_expect(zero(int, fsdp_tensor_check(tensor)));
	daemon_kill_broker(&sharing.daemon);
	cr_assert(zero(int, have(&sharing.two, actor_gets, "t/a")), "%s",
		  sharing.page->sentence);
	cr_expect(eq(u8, sharing.page->seen, 9));
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -EPERM));
	cr_expect(says("did not share"), "%s", fsdp_error());
	fsdp_free(tensor);
	must(actor_run(&sharing.two, actor_lets_go) == 0);
	must(fsdp_remove(sharing.client, &(const char *){"t/a"}, 1) == 0);
	cr_expect(nothing_is_left(2));
}

static struct fsdp_tensor *unpublished;

static int share_silently(void)
{
	struct vmm_memory memory;

	vmm_make(&memory, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 1);
	unpublished = share((void *)(uintptr_t)memory.address, memory.size);
	share(legacy_make(1), SHARED_SIZE);
	return 0;
}

/* Case 38: in PyTorch it stays in the file system until no process is left. */
Test(share_death, an_unpublished_tensor_ends_with_its_producer)
{
	must(actor_run(&sharing.one, share_silently) == 0);
	actor_kill(&sharing.one);
	cr_expect(nothing_is_left(2));
}

static const char *place;

static int shares_and_dies(void)
{
	setenv("FSDP_KILL_AT", place, 1);
	must(actor_shares() == 0);
	must(actor_unshares() == 0);
	return 0;
}

Test(share_death, a_producer_that_dies_at_any_failpoint_leaves_nothing)
{
	static const char *const places[] = {
		"client.share.sent",   "client.share.received",
		"client.publish.sent", "client.publish.received",
		"client.unshare.sent", "client.unshare.received",
	};
	struct actor producer;

	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	strcpy(sharing.page->name, "t/a");
	for (size_t i = 0; i < sizeof(places) / sizeof(*places); i++) {
		place = places[i];
		actor_start(&producer, NULL);
		must(actor_run(&producer, actor_connects) == 0);
		cr_expect(
			eq(int, actor_run(&producer, shares_and_dies), -ECHILD),
			"%s", place);
		actor_kill(&producer);
		cr_expect(nothing_is_left(3), "%s", place);
	}
}

/* --- processes that use it ----------------------------------------------- */

/* Case 39: in PyTorch it is kept until the producer ends. */
Test(share_death, tensors_held_by_a_dead_consumer_are_released)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory);

	must(have(&sharing.one, actor_gets, "t/a") == 0);
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT));
	actor_kill(&sharing.one);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)), "%s",
		  fsdp_error());
	fsdp_free(tensor);
	legacy_free(memory);
	cr_expect(nothing_is_left(2));
}

/* --- the broker ---------------------------------------------------------- */

Test(share_death, shared_memory_outlives_the_broker)
{
	void *memory = legacy_make(7);
	struct fsdp_tensor *tensor = share_as("t/a", memory), *more;

	must(have(&sharing.one, actor_gets, "t/a") == 0);
	daemon_kill_broker(&sharing.daemon);
	cr_expect(zero(int, actor_run(&sharing.one, actor_checks)));
	cr_assert(zero(int, have(&sharing.two, actor_gets, "t/a")), "%s",
		  sharing.page->sentence);
	cr_expect(eq(u8, sharing.page->seen, 7));
	more = share_as("t/b", memory);
	cr_expect(eq(ptr, (void *)fsdp_data(more), memory));
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT));
	must(actor_run(&sharing.one, actor_lets_go) == 0);
	must(actor_run(&sharing.two, actor_lets_go) == 0);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)));
	cr_expect(zero(int, fsdp_unshare(more, PATIENCE_MS)));
	fsdp_free(tensor);
	fsdp_free(more);
	cr_expect(nothing_is_left(3));
}

Test(share_death, unsharing_continues_to_wait_after_a_restart_of_the_broker)
{
	must(have(&sharing.one, actor_shares, "t/a") == 0);
	must(have(&sharing.two, actor_gets, "t/a") == 0);
	sharing.page->timeout_ms = -1;
	actor_begin(&sharing.one, actor_unshares);
	await_parked(sharing.one.pid);
	daemon_kill_broker(&sharing.daemon);
	await_parked(sharing.one.pid);
	must(actor_run(&sharing.two, actor_lets_go) == 0);
	cr_expect(zero(int, actor_end(&sharing.one)), "%s",
		  sharing.page->sentence);
	cr_expect(nothing_is_left(3));
}

Test(share_death, the_death_of_a_producer_without_a_broker_is_noticed)
{
	struct fsdp_tensor *tensor = NULL;

	must(have(&sharing.one, actor_shares, "t/a") == 0);
	must(try_get("t/a", &tensor) == 0);
	must(kill(sharing.daemon.pid, SIGSTOP) == 0);
	must(kill(daemon_broker_pid(&sharing.daemon), SIGKILL) == 0);
	actor_kill(&sharing.one);
	must(kill(sharing.daemon.pid, SIGCONT) == 0);
	cr_assert(await_sessions(2));
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EOWNERDEAD));
	fsdp_free(tensor);
	cr_expect(nothing_is_left(2));
}

/* --- deaths of the broker at every failpoint ----------------------------- */

#define MAX_PASSAGES 2 /* of one failpoint; each has a broker */

static struct chaos chaos;

static void open_chaos(void)
{
	chaos_start(&chaos, "[memory]\nwarm_ms = 10ms\n");
	sharing.client = chaos_connect(&chaos);
}

static void close_chaos(void)
{
	fsdp_close(sharing.client);
	chaos_stop(&chaos);
}

TestSuite(share_chaos, .init = gpu_open, .fini = gpu_close, .timeout = 300);

/* Use tensors in memory of both kinds. Each step must have the same result,
 * even if the broker dies during it. */
static void run_through(void *memory, const struct vmm_memory *donated)
{
	void *const pages = (void *)(uintptr_t)donated->address;
	struct fsdp_tensor *tensors[3] = {share(memory, SHARED_SIZE),
					  share(memory, 16),
					  share(pages, donated->size)};
	struct fsdp_tensor *again = NULL;

	must(publish_as(tensors[0], "t/a") == 0);
	must(publish_as(tensors[2], "t/b") == 0);
	must(try_get("t/a", &again) == 0);
	must(fsdp_data(again) == memory);
	must(fsdp_unshare(tensors[0], 0) == -ETIMEDOUT);
	fsdp_free(again);
	for (size_t i = 0; i < 3; i++) {
		must(fsdp_unshare(tensors[i], PATIENCE_MS) == 0);
		fsdp_free(tensors[i]);
	}
}

/* Have the broker die at that point of an unsharing. No other broker is started
 * while the supervisor is stopped. */
static struct fsdp_tensor *unshare_late(const char *point)
{
	struct fsdp_tensor *tensor;

	chaos_start(&chaos, NULL);
	sharing.client = connect_impatiently(daemon_socket(&chaos.daemon), 50);
	tensor = share_as("t/a", legacy_make(7));
	plan_death(chaos.plan, point, 1);
	must(kill(chaos.daemon.pid, SIGSTOP) == 0);
	for (int i = 0; i < 2; i++)
		cr_expect(eq(int, fsdp_unshare(tensor, PATIENCE_MS),
			     -EINPROGRESS),
			  "%s: %s", point, fsdp_error());
	cr_expect(eq(ptr, (void *)fsdp_data(tensor), NULL), "%s", point);
	must(kill(chaos.daemon.pid, SIGCONT) == 0);
	while (fsdp_ping(sharing.client) < 0)
		nap_ms(1);
	return tensor;
}

/* Nothing is left of the tensor, and its slot is used again. */
static void check_unshared(const char *point)
{
	struct fsdp_tensor *tensor = NULL;

	cr_expect(eq(int, try_get("t/a", &tensor), -ENOENT), "%s", point);
	tensor = share_as("t/a", legacy_make(7));
	cr_expect(eq(i64, count_slot_holds(sharing.client, tensor), 1), "%s",
		  point);
	fsdp_free(tensor);
	close_chaos();
}

static const char *const late_points[] = {"verb.unshare.done",
					  "verb.unshare.committed"};

Test(share_chaos, an_unsharing_without_a_reply_is_repeated)
{
	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	for (size_t i = 0; i < 2; i++) {
		struct fsdp_tensor *tensor = unshare_late(late_points[i]);

		cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)),
			  "%s: %s", late_points[i], fsdp_error());
		fsdp_free(tensor);
		check_unshared(late_points[i]);
	}
}

Test(share_chaos, a_handle_is_freed_after_an_unsharing_without_a_reply)
{
	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	for (size_t i = 0; i < 2; i++) {
		fsdp_free(unshare_late(late_points[i]));
		check_unshared(late_points[i]);
	}
}

Test(share_chaos, a_handle_that_others_use_is_freed_after_such_an_unsharing)
{
	struct fsdp_tensor *tensor, *again = NULL;

	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	tensor = unshare_late("verb.unshare.done");
	cr_assert(zero(int, try_get("t/a", &again)), "%s", fsdp_error());
	fsdp_free(tensor);
	cr_expect(eq(i64, count_slot_holds(sharing.client, again), 1));
	fsdp_free(again);
	check_unshared("verb.unshare.done");
}

/* While others use the tensor, the handle has its hold back. */
Test(share_chaos, an_unsharing_that_was_undone_may_have_to_wait)
{
	struct fsdp_tensor *tensor, *again = NULL;

	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	tensor = unshare_late("verb.unshare.done");
	cr_assert(zero(int, try_get("t/a", &again)), "%s", fsdp_error());
	cr_expect(eq(int, fsdp_unshare(tensor, 0), -ETIMEDOUT));
	cr_expect(ne(ptr, (void *)fsdp_data(tensor), NULL));
	fsdp_free(again);
	cr_expect(zero(int, fsdp_unshare(tensor, PATIENCE_MS)));
	fsdp_free(tensor);
	check_unshared("verb.unshare.done");
}

static size_t n_died;

static bool run_with_death(const struct passage *passage, unsigned int n,
			   void *memory, const struct vmm_memory *donated)
{
	bool is_clean;

	open_chaos();
	plan_death(chaos.plan, passage->name, n);
	run_through(memory, donated);
	is_clean = nothing_is_left(1);
	n_died += plan_is_done(chaos.plan);
	close_chaos();
	return is_clean;
}

Test(share_chaos, a_broker_that_dies_at_any_failpoint_loses_nothing)
{
	struct vmm_memory donated;
	struct passages passages;
	void *memory;

	if (!chaos_has_points())
		cr_skip_test("points are not compiled in");
	memory = legacy_make(7);
	vmm_make(&donated, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR, 7);
	open_chaos();
	passages_forget(chaos.points);
	run_through(memory, &donated);
	passages_read(chaos.points, &passages);
	close_chaos();
	cr_expect(gt(sz, passages.n, 0));
	for (size_t i = 0; i < passages.n; i++)
		for (unsigned int n = 1;
		     n <= passages.list[i].n && n <= MAX_PASSAGES; n++)
			cr_expect(run_with_death(&passages.list[i], n, memory,
						 &donated),
				  "%s %u", passages.list[i].name, n);
	/* Some failpoints are passed after the last step. */
	cr_expect(gt(sz, n_died, passages.n / 2));
}
