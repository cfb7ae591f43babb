/*
 * Tests the order between the streams of processes. A reader waits for the
 * writer, and memory waits for the reader, while no CPU thread blocks.
 */
#include "cuda/context.h"
#include "tests/lib/check.h"
#include "tests/lib/stage.h"
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

static const struct fsdp_spec BYTES = {FSDP_U8, 1, {STAGE_SIZE}};

TestSuite(stream, .init = stage_open, .fini = stage_close, .timeout = 300);

/* --- writing ------------------------------------------------------------- */

Test(stream, a_stream_of_a_consumer_waits_for_that_of_the_producer)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream;
	uint8_t *seen;

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	stream = stream_make(gpu_nth(0));
	seen = pinned_memory(STAGE_SIZE);
	cr_assert(zero(int, get_on("t/a", stream, 0, &tensor)), "%s",
		  fsdp_error());
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EAGAIN));
	stream_read(stream, seen, tensor, STAGE_SIZE);
	cr_assert(zero(int, fsdp_release_on(tensor, stream)), "%s",
		  fsdp_error());
	cr_expect(not(stream_is_done(stream)));

	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(tensor);
}

Test(stream, without_the_wait_the_data_would_be_wrong)
{
	struct fsdp_tensor *tensor = NULL;
	CUstream stream;
	uint8_t *seen;

	cr_assert(zero(int, actor_run(&stage.producer, produce_ticket)));
	stream = stream_make(gpu_nth(0));
	seen = pinned_memory(STAGE_SIZE);
	/* No stream waits for the tensor's writer yet. */
	cr_assert(zero(int,
		       fsdp_ticket_redeem(stage.client, &stage.shared->ticket,
					  1, &tensor)));
	stream_read(stream, seen, tensor, STAGE_SIZE);
	cr_assert(stream_finish(stream));
	cr_expect(is_filled(seen, STAGE_SIZE, 0));

	cr_assert(zero(int, fsdp_tensor_wait(tensor, stream, 0)), "%s",
		  fsdp_error());
	stream_read(stream, seen, tensor, STAGE_SIZE);
	cr_expect(not(stream_is_done(stream)));
	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(tensor);
}

Test(stream, a_reader_maps_timelines_read_only_if_the_device_supports_it)
{
	struct fsdp_tensor *tensor = NULL;

	if (!gpu_nth(0)->has_readonly_register || !gpu_nth(0)->has_wait_value)
		cr_skip_test("needs a device that registers pages read-only "
			     "(attribute 113)");
	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	cr_assert(
		zero(int, get_on("t/a", stream_make(gpu_nth(0)), 0, &tensor)));
	cr_expect(not(maps_timelines_writable()));
	open_gate();
	fsdp_free(tensor);
}

Test(stream, without_a_stream_the_call_waits)
{
	struct fsdp_tensor *tensor = NULL;
	uint8_t seen[STAGE_SIZE];

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	cr_expect(eq(int, get_on("t/a", NULL, 0, &tensor), -ETIMEDOUT));
	cr_expect(ne(ptr, strstr(fsdp_error(), "t/a"), NULL), "%s",
		  fsdp_error());
	cr_expect(eq(int, get_on("t/a", NULL, 30, &tensor), -ETIMEDOUT));
	open_gate();
	cr_assert(zero(int, get_on("t/a", NULL, -1, &tensor)), "%s",
		  fsdp_error());
	cr_expect(zero(int, fsdp_tensor_check(tensor)));
	cr_assert(zero(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE)));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(tensor);
	cr_assert(zero(int, get_on("t/a", NULL, 0, &tensor)),
		  "what is written needs no wait");
	fsdp_free(tensor);
}

/* Within this time work that waits for nothing is finished. */
#define MOMENT_MS 50

static void *open_gate_later(void *unused)
{
	(void)unused;
	nap_ms(MOMENT_MS);
	sem_post(&stage.shared->gate);
	return NULL;
}

Test(stream, a_copy_out_waits_for_the_producer)
{
	struct fsdp_tensor *tensor = NULL;
	uint8_t seen[STAGE_SIZE];
	pthread_t thread;

	cr_assert(zero(int, actor_run(&stage.producer, produce_ticket)));
	cr_assert(zero(int,
		       fsdp_ticket_redeem(stage.client, &stage.shared->ticket,
					  1, &tensor)));
	must(pthread_create(&thread, NULL, open_gate_later, NULL) == 0);
	cr_assert(zero(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE)));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	fsdp_free(tensor);
	pthread_join(thread, NULL);
}

Test(stream, the_fence_of_a_tensor_is_also_that_of_its_views)
{
	const struct fsdp_spec half = {FSDP_U8, 1, {STAGE_SIZE / 2}};
	struct fsdp_tensor *base = NULL, *view = NULL;
	CUstream stream;
	uint8_t *seen;

	cr_assert(zero(int, actor_run(&stage.producer, produce_ticket)));
	stream = stream_make(gpu_nth(0));
	seen = pinned_memory(STAGE_SIZE);
	cr_assert(
		zero(int, fsdp_ticket_redeem(stage.client,
					     &stage.shared->ticket, 1, &base)));
	cr_assert(
		zero(int, fsdp_view(base, &half, NULL, STAGE_SIZE / 2, &view)),
		"%s", fsdp_error());
	cr_expect(eq(int, fsdp_tensor_check(view), -EAGAIN));
	cr_assert(zero(int, fsdp_tensor_wait(view, stream, 0)));
	stream_read(stream, seen, view, STAGE_SIZE / 2);
	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(is_filled(seen, STAGE_SIZE / 2, STAGE_VALUE));
	fsdp_free(view);
	fsdp_free(base);
}

Test(stream, a_process_also_waits_for_its_own_streams)
{
	CUstream writer = stream_make(gpu_nth(0));
	CUstream reader = stream_make(gpu_nth(0));
	uint8_t *seen = pinned_memory(STAGE_SIZE), zeros[STAGE_SIZE] = {0};
	struct fsdp_tensor *tensor = alloc();

	cr_assert(zero(int, fsdp_copy_in(tensor, 0, zeros, STAGE_SIZE)));
	stream_hold(writer, &stage.shared->gate);
	stream_fill(writer, tensor, 17);
	cr_assert(zero(int, publish_on(tensor, "t/own", writer)));
	cr_expect(eq(int, fsdp_tensor_check(tensor), -EAGAIN));
	cr_assert(zero(int, fsdp_tensor_wait(tensor, reader, 0)));
	stream_read(reader, seen, tensor, STAGE_SIZE);
	open_gate();
	cr_assert(stream_finish(reader));
	cr_expect(is_filled(seen, STAGE_SIZE, 17));
	fsdp_free(tensor);
}

static void describe(void *data)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};

	must(fsdp_tensor_info(data, &info) == 0);
	must(!info.is_tainted && info.size == STAGE_SIZE);
}

Test(stream, a_forked_child_can_describe_a_tensor_that_is_being_written)
{
	CUstream writer = stream_make(gpu_nth(0));
	struct fsdp_tensor *tensor = alloc();

	stream_hold(writer, &stage.shared->gate);
	cr_assert(zero(int, publish_on(tensor, "t/own", writer)));
	cr_expect(child_run(describe, tensor));
	open_gate();
	cr_assert(stream_finish(writer));
	fsdp_free(tensor);
}

/* Each stream writes its number to a tensor of its own. */
Test(stream, there_may_be_more_streams_than_timelines)
{
	enum { N = 100 };
	struct fsdp_tensor *tensors[N];
	CUstream streams[N], reader = stream_make(gpu_nth(0));
	uint8_t *seen = pinned_memory(N);

	/* A driver may wait for its streams when it makes one more. */
	for (int i = 0; i < N; i++)
		streams[i] = stream_make(gpu_nth(0));
	for (int i = 0; i < N; i++) {
		char name[16];

		tensors[i] = alloc();
		if (i % 7 == 0)
			stream_hold(streams[i], &stage.shared->gate);
		stream_fill(streams[i], tensors[i], (uint8_t)(i + 1));
		snprintf(name, sizeof(name), "n/%d", i);
		cr_assert(zero(int, publish_on(tensors[i], name, streams[i])),
			  "%s", fsdp_error());
	}
	for (int i = 0; i < N; i++) {
		cr_assert(zero(int, fsdp_tensor_wait(tensors[i], reader, 0)));
		stream_read(reader, seen + i, tensors[i], 1);
	}
	for (int i = 0; i < N; i += 7)
		open_gate();
	cr_assert(stream_finish(reader));
	for (int i = 0; i < N; i++) {
		cr_expect(eq(u8, seen[i], (uint8_t)(i + 1)), "%d", i);
		cr_expect(zero(int, fsdp_tensor_check(tensors[i])));
		fsdp_free(tensors[i]);
	}
}

/* There is one stream more than a device has queues by default. The last one
 * shares the queue of the first unless there are more queues
 * (CUDA_DEVICE_MAX_CONNECTIONS). */
Test(stream, a_stream_that_waits_does_not_block_other_streams)
{
	enum { N = 9 };
	struct fsdp_tensor *tensor = NULL, *mine;
	CUstream streams[N];

	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	mine = alloc();
	for (int i = 0; i < N; i++)
		streams[i] = stream_make(gpu_nth(0));
	cr_assert(zero(int, get_on("t/a", streams[0], 0, &tensor)));
	stream_fill(streams[N - 1], mine, 1);
	cr_expect(stream_finish(streams[N - 1]));
	cr_expect(not(stream_is_done(streams[0])));
	open_gate();
	cr_assert(stream_finish(streams[0]));
	fsdp_free(tensor);
	fsdp_free(mine);
}

Test(stream, tensors_that_are_published_together_share_one_fence)
{
	enum { N = 64 };
	struct fsdp_publication items[N] = {{0}};
	char names[N][16];
	CUstream stream = stream_make(gpu_nth(0));

	for (int i = 0; i < N; i++) {
		snprintf(names[i], sizeof(names[i]), "n/%d", i);
		items[i] = (struct fsdp_publication){
			.tensor = alloc(), .name = names[i], .stream = stream};
		stream_fill(stream, items[i].tensor, 3);
	}
	stream_hold(stream, &stage.shared->gate);
	cr_assert(zero(int, fsdp_publish(stage.client, items, N)), "%s",
		  fsdp_error());
	for (int i = 0; i < N; i++)
		cr_expect(eq(int, fsdp_tensor_check(items[i].tensor), -EAGAIN));
	open_gate();
	for (int i = 0; i < N; i++) {
		cr_expect(
			zero(int, fsdp_tensor_wait(items[i].tensor, NULL, -1)));
		fsdp_free(items[i].tensor);
	}
}

static struct fsdp_tensor *alloc_empty(void)
{
	const struct fsdp_spec none = {FSDP_U8, 1, {0}};
	struct fsdp_device gpu = gpu_name(0);
	struct fsdp_tensor *tensor = NULL;

	must(fsdp_alloc_on(stage.client, &gpu, &none, 1, NULL, 0, &tensor) ==
	     0);
	return tensor;
}

Test(stream, tensors_without_elements_can_be_published_together_with_others)
{
	enum { N = 5 };
	static const char *const names[N] = {"n/0", "n/1", "n/2", "n/3", "n/4"};
	struct fsdp_publication items[N];
	CUstream stream = stream_make(gpu_nth(0));

	for (int i = 0; i < N; i++)
		items[i] = (struct fsdp_publication){
			.tensor = i % 2 ? alloc() : alloc_empty(),
			.name = names[i],
			.stream = stream};
	stream_hold(stream, &stage.shared->gate);
	cr_assert(zero(int, fsdp_publish(stage.client, items, N)), "%s",
		  fsdp_error());
	for (int i = 0; i < N; i++) {
		cr_expect(eq(int, fsdp_tensor_check(items[i].tensor),
			     i % 2 ? -EAGAIN : 0),
			  "%d", i);
		fsdp_free(items[i].tensor);
		remove_name(names[i]);
	}
	/* The stream keeps the tensors with elements. */
	cr_expect(await_slots(2));
	open_gate();
	cr_expect(await_slots(0));
}

Test(stream, a_batch_with_a_tensor_of_the_host_or_another_device_is_refused)
{
	struct fsdp_publication items[3] = {{.name = "n/0"}, {.name = "n/1"}};
	struct fsdp_device gpu = gpu_name(n_gpus() - 1);
	CUstream stream = stream_make(gpu_nth(0));

	items[0].tensor = alloc();
	must(fsdp_alloc(stage.client, &BYTES, 1, NULL, 0, &items[1].tensor) ==
	     0);
	items[2] = (struct fsdp_publication){.tensor = alloc(), .name = "n/2"};
	for (int i = 0; i < 3; i++)
		items[i].stream = stream;
	cr_expect(eq(int, fsdp_publish(stage.client, items, 3), -EINVAL));
	cr_expect(ne(ptr, strstr(fsdp_error(), "host memory"), NULL), "%s",
		  fsdp_error());
	fsdp_free(items[1].tensor);
	must(fsdp_alloc_on(stage.client, &gpu, &BYTES, 1, NULL, 0,
			   &items[1].tensor) == 0);
	if (n_gpus() > 1) {
		cr_expect(
			eq(int, fsdp_publish(stage.client, items, 3), -EINVAL));
		cr_expect(ne(ptr, strstr(fsdp_error(), "of one device"), NULL),
			  "%s", fsdp_error());
	}
	for (int i = 0; i < 3; i++)
		fsdp_free(items[i].tensor);
	cr_expect(await_slots(0), "none was published");
}

static void pass_gate(void *gate)
{
	while (sem_wait(gate) < 0 && errno == EINTR)
		;
}

static void hold_default_stream(const struct device *device)
{
	must(context_enter(device, NULL) == 0);
	must(cu.LaunchHostFunc(CU_STREAM_LEGACY, pass_gate,
			       &stage.shared->gate) == CUDA_SUCCESS);
	context_leave();
}

Test(stream, each_device_has_its_own_default_stream)
{
	struct fsdp_publication items[2] = {
		{.name = "n/0", .stream = (void *)1},
		{.name = "n/1", .stream = (void *)1},
	};

	if (n_gpus() < 2)
		cr_skip_test("needs two devices");
	for (uint32_t i = 0; i < 2; i++) {
		struct fsdp_device gpu = gpu_name(i);

		must(fsdp_alloc_on(stage.client, &gpu, &BYTES, 1, NULL, 0,
				   &items[i].tensor) == 0);
	}
	hold_default_stream(gpu_nth(1));
	cr_assert(zero(int, fsdp_publish(stage.client, items, 2)), "%s",
		  fsdp_error());
	cr_expect(zero(int, fsdp_tensor_wait(items[0].tensor, NULL, -1)));
	cr_expect(eq(int, fsdp_tensor_check(items[1].tensor), -EAGAIN));
	open_gate();
	cr_expect(zero(int, fsdp_tensor_wait(items[1].tensor, NULL, -1)));
	for (int i = 0; i < 2; i++)
		fsdp_free(items[i].tensor);
}

/* --- releasing ----------------------------------------------------------- */

Test(stream, memory_is_freed_only_after_the_stream_that_reads_it)
{
	struct fsdp_tensor *tensor = NULL, *next;
	CUstream stream;
	uint8_t *seen;

	open_gate();
	cr_assert(zero(int, actor_run(&stage.producer, produce)));
	cr_assert(zero(int, actor_run(&stage.producer, produce_finishes)));
	cr_assert(zero(int, actor_run(&stage.producer, produce_lets_go)));
	stream = stream_make(gpu_nth(0));
	seen = pinned_memory(STAGE_SIZE);
	cr_assert(zero(int, get_on("t/a", stream, 0, &tensor)));
	/* The first copy allocates memory, for which a driver may wait for
	 * streams. */
	cr_assert(zero(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE)));
	memset(seen, 0, STAGE_SIZE);
	stream_hold(stream, &stage.shared->gate);
	stream_read(stream, seen, tensor, STAGE_SIZE);
	cr_assert(zero(int, fsdp_release_on(tensor, stream)));
	fsdp_free(tensor);
	remove_name("t/a");
	cr_expect(eq(u64, n_slots(), 1));
	/* A new allocation gets other memory. */
	next = alloc();
	cr_assert(zero(int, fsdp_copy_in(next, 0, (uint8_t[STAGE_SIZE]){0},
					 STAGE_SIZE)));
	cr_expect(eq(u64, n_slots(), 2));
	open_gate();
	cr_assert(stream_finish(stream));
	cr_expect(is_filled(seen, STAGE_SIZE, STAGE_VALUE));
	cr_expect(await_slots(1));
	fsdp_free(next);
}

Test(stream, a_producer_may_release_a_tensor_before_it_is_written)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream stream = stream_make(gpu_nth(0));

	stream_hold(stream, &stage.shared->gate);
	stream_fill(stream, tensor, 1);
	cr_assert(zero(int, publish_on(tensor, "t/own", stream)));
	fsdp_free(tensor);
	remove_name("t/own");
	cr_expect(eq(u64, n_slots(), 1));
	cr_assert(zero(int, fsdp_ping(stage.client)));
	cr_expect(eq(u64, n_slots(), 1));
	open_gate();
	cr_expect(await_slots(0));
}

Test(stream, a_release_on_a_second_stream_waits_for_the_first_stream)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream first = stream_make(gpu_nth(0));
	CUstream second = stream_make(gpu_nth(0));

	if (!gpu_nth(0)->has_wait_value)
		cr_skip_test("without fences each release waits for itself");
	cr_assert(zero(int, fsdp_hold(tensor)));
	stream_hold(first, &stage.shared->gate);
	cr_assert(zero(int, fsdp_release_on(tensor, first)));
	cr_assert(zero(int, fsdp_release_on(tensor, second)));
	fsdp_free(tensor);
	cr_expect(not(stream_is_done(second)));
	cr_expect(eq(u64, n_slots(), 1));
	open_gate();
	cr_assert(stream_finish(second));
	cr_expect(stream_is_done(first), "it came before");
	cr_expect(await_slots(0));
}

struct releasing {
	struct fsdp_tensor *tensor;
	CUstream stream;
};

static void *release_often(void *data)
{
	const struct releasing *it = data;

	for (int i = 0; i < 50; i++) {
		must(fsdp_hold(it->tensor) == 0);
		must(fsdp_release_on(it->tensor, it->stream) == 0);
	}
	return NULL;
}

Test(stream, threads_can_release_one_tensor_on_different_streams)
{
	enum { N = 6 };
	struct releasing those[N];
	pthread_t threads[N];
	struct fsdp_tensor *tensor = alloc();

	for (int i = 0; i < N; i++)
		those[i] = (struct releasing){tensor, stream_make(gpu_nth(0))};
	for (int i = 0; i < N; i++)
		must(pthread_create(&threads[i], NULL, release_often,
				    &those[i]) == 0);
	for (int i = 0; i < N; i++)
		pthread_join(threads[i], NULL);
	cr_expect(eq(u64, n_slots(), 1));
	fsdp_free(tensor);
	for (int i = 0; i < N; i++)
		cr_expect(stream_finish(those[i].stream));
	cr_expect(await_slots(0));
}

Test(stream, a_release_that_is_refused_keeps_the_hold)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream foreign;

	if (n_gpus() < 2)
		cr_skip_test("needs two devices");
	foreign = stream_make(gpu_nth(1));
	cr_expect(eq(int, fsdp_release_on(tensor, foreign), -EINVAL));
	cr_expect(zero(int, fsdp_release(tensor)), "%s", fsdp_error());
	cr_expect(eq(int, fsdp_release_on(tensor, foreign), -EINVAL));
	fsdp_free(tensor);
}

static void *close_client(void *unused)
{
	(void)unused;
	fsdp_close(stage.client);
	return NULL;
}

Test(stream, closing_waits_for_tensors_published_on_a_stream)
{
	struct fsdp_tensor *tensor = alloc();
	CUstream stream = stream_make(gpu_nth(0));
	uint8_t seen[STAGE_SIZE];
	pthread_t thread;

	stream_hold(stream, &stage.shared->gate);
	stream_fill(stream, tensor, 21);
	cr_assert(zero(int, publish_on(tensor, "t/own", stream)));
	must(pthread_create(&thread, NULL, close_client, NULL) == 0);
	nap_ms(MOMENT_MS);
	open_gate();
	pthread_join(thread, NULL);
	cr_expect(stream_finish(stream), "its memory was there");
	open_client();
	cr_assert(zero(int, get_on("t/own", NULL, 0, &tensor)), "%s",
		  fsdp_error());
	cr_assert(zero(int, fsdp_copy_out(seen, tensor, 0, STAGE_SIZE)));
	cr_expect(is_filled(seen, STAGE_SIZE, 21));
	fsdp_free(tensor);
}
