/* Tests what streams of the fake driver share: hardware queues, and the thread
 * that calls host functions. */
#include "tests/fakes/cuda/fake.h"
#include "tests/unit/fakes/cuda/fakecuda_fixture.h"
#include <sched.h>
#include <semaphore.h>

TestSuite(fakecuda_queue, .init = gpu_open, .fini = gpu_close, .timeout = 300);

/* Let the first stream wait. Then queue a write on each other stream. */
static void queue_behind(CUstream streams[], int n, const struct words *words)
{
	for (int i = 0; i < n; i++)
		streams[i] = new_stream();
	OK(cuStreamWaitValue64(streams[0], words->device, 1,
			       CU_STREAM_WAIT_VALUE_GEQ));
	for (int i = 1; i < n; i++)
		OK(cuStreamWriteValue64(
			streams[i], words->device + 8 * (unsigned int)i, 7, 0));
}

Test(fakecuda_queue, streams_of_one_queue_wait_for_each_other)
{
	struct words words;
	CUstream streams[3];

	setenv("FAKECUDA_QUEUES", "2", 1);
	use_device(0);
	words = new_words();
	queue_behind(streams, 3, &words);
	OK(cuStreamSynchronize(streams[1]));
	/* a chance for the third to be wrong */
	for (int i = 0; i < 2000; i++)
		sched_yield();
	EXPECT_RESULT(cuStreamQuery(streams[2]), CUDA_ERROR_NOT_READY);
	cr_expect(zero(u64, words.host[2]));
	*words.host = 1;
	OK(cuStreamSynchronize(streams[2]));
	cr_expect(eq(u64, words.host[2], 7));
}

Test(fakecuda_queue, the_environment_determines_the_number_of_queues)
{
	struct words words;
	CUstream streams[6];

	setenv("FAKECUDA_QUEUES", "2", 1);
	setenv("CUDA_DEVICE_MAX_CONNECTIONS", "6", 1);
	use_device(0);
	words = new_words();
	queue_behind(streams, 6, &words);
	for (int i = 1; i < 6; i++)
		OK(cuStreamSynchronize(streams[i]));
	*words.host = 1;
}

static void spin_until_1(void *data)
{
	while (*(volatile uint64_t *)data != 1 && !fake_is_stopping())
		sched_yield();
}

/* A kernel that runs lets later work of its queue begin. Only a wait blocks the
 * queue. */
Test(fakecuda_queue, a_queue_is_blocked_only_by_waits)
{
	struct words words;
	CUstream streams[2];

	setenv("FAKECUDA_QUEUES", "1", 1);
	use_device(0);
	words = new_words();
	streams[0] = new_stream();
	streams[1] = new_stream();
	OK(fake_stream_enqueue(streams[0], spin_until_1, (void *)words.host));
	OK(cuStreamWriteValue64(streams[1], words.device, 1, 0));
	OK(cuStreamSynchronize(streams[0]));
}

/* --- host functions ------------------------------------------------------ */

static sem_t callback_begun, callback_gate;
static _Atomic int n_callbacks;

static void block_callback(void *unused)
{
	(void)unused;
	n_callbacks++;
	sem_post(&callback_begun);
	sem_wait(&callback_gate);
}

static void count_callback(void *unused)
{
	(void)unused;
	n_callbacks++;
}

Test(fakecuda_queue, a_host_function_that_blocks_delays_all_others)
{
	CUstream first, second, third;
	struct words words;

	setenv("FAKECUDA_ONE_CALLBACK", "1", 1);
	use_device(0);
	words = new_words();
	first = new_stream();
	second = new_stream();
	third = new_stream();
	cr_assert(zero(int, sem_init(&callback_begun, 0, 0)));
	cr_assert(zero(int, sem_init(&callback_gate, 0, 0)));
	OK(cuLaunchHostFunc(first, block_callback, NULL));
	cr_assert(zero(int, sem_wait(&callback_begun)));
	OK(cuLaunchHostFunc(second, count_callback, NULL));
	OK(cuStreamWriteValue64(third, words.device, 1, 0));
	OK(cuStreamSynchronize(third));
	for (int i = 0; i < 2000; i++)
		sched_yield();
	EXPECT_RESULT(cuStreamQuery(second), CUDA_ERROR_NOT_READY);
	cr_expect(eq(int, n_callbacks, 1));
	sem_post(&callback_gate);
	OK(cuStreamSynchronize(second));
	cr_expect(eq(int, n_callbacks, 2));
}

/* Have 32 streams, one of which waits for a host function. */
static void make_streams_and_hold_one(void)
{
	CUstream stream;

	use_device(0);
	for (int i = 0; i < 32; i++)
		stream = new_stream();
	MUST(sem_init(&callback_begun, 0, 0) == 0);
	MUST(sem_init(&callback_gate, 0, 0) == 0);
	OK(cuLaunchHostFunc(stream, block_callback, NULL));
	MUST(sem_wait(&callback_begun) == 0);
}

static void make_one_more(void)
{
	make_streams_and_hold_one();
	(void)new_stream();
}

Test(fakecuda_queue, creating_a_stream_while_the_host_blocks_one_of_many_aborts)
{
	cr_expect(ends_with(make_one_more, "StreamCreate"));
	make_streams_and_hold_one();
	sem_post(&callback_gate);
	OK(cuCtxSynchronize());
	(void)new_stream();
}
