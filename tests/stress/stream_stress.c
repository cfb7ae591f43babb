/*
 * Threads of one connection pass tensors to each other's streams. Each thread
 * writes its own name again and again, reads all others, and waits only for its
 * own stream. A tensor that is read must consist of one value, ThreadSanitizer
 * must find no race, and at the end nothing may be left.
 */
#include "tests/lib/chaos.h"
#include "tests/lib/device.h"
#include <pthread.h>
#include <string.h>

#define N_THREADS 6
#define N_ROUNDS  60
#define SIZE      512

static const struct fsdp_spec BYTES = {FSDP_U8, 1, {SIZE}};

static struct fsdp_client *client;
static char names[N_THREADS][16];
static pthread_barrier_t all_published;

struct worker {
	int i;
	CUstream stream;
	struct fsdp_device gpu;
	uint8_t *pinned;
};

static void publish(struct worker *worker, uint8_t value)
{
	struct fsdp_publication it = {.name = names[worker->i],
				      .flags = FSDP_REPLACE,
				      .stream = worker->stream};

	must(fsdp_alloc_on(client, &worker->gpu, &BYTES, 1, NULL, -1,
			   &it.tensor) == 0);
	stream_fill(worker->stream, it.tensor, 0);
	stream_fill(worker->stream, it.tensor, value);
	must(fsdp_publish(client, &it, 1) == 0);
	fsdp_free(it.tensor);
}

static void read_one(struct worker *worker, const char *name)
{
	const struct fsdp_get_options options = {.stream = worker->stream};
	struct fsdp_tensor *tensor = NULL;

	must(fsdp_get(client, &name, 1, &options, &tensor) == 0);
	stream_read(worker->stream, worker->pinned, tensor, SIZE);
	must(fsdp_release_on(tensor, worker->stream) == 0);
	fsdp_free(tensor);
	must(stream_finish(worker->stream));
	must(worker->pinned[0] > 0);
	must(is_filled(worker->pinned, SIZE, worker->pinned[0]));
}

static void *run(void *data)
{
	struct worker *worker = data;

	publish(worker, 1);
	pthread_barrier_wait(&all_published);
	for (int round = 2; round < N_ROUNDS; round++) {
		publish(worker, (uint8_t)round);
		for (int i = 0; i < N_THREADS; i++)
			read_one(worker, names[i]);
	}
	return NULL;
}

static void start(struct chaos *chaos, struct worker *workers)
{
	/* gives this test fake devices of its own */
	setenv("FSDP_TEST_DEVICES", "1", 1);
	chaos_start(chaos, NULL);
	client = chaos_connect(chaos);
	must(pthread_barrier_init(&all_published, NULL, N_THREADS) == 0);
	for (int i = 0; i < N_THREADS; i++) {
		snprintf(names[i], sizeof(names[i]), "s/%d", i);
		workers[i] = (struct worker){.i = i,
					     .stream = stream_make(gpu_nth(0)),
					     .gpu = gpu_name(0),
					     .pinned = pinned_memory(SIZE)};
	}
}

int main(void)
{
	struct worker workers[N_THREADS];
	pthread_t threads[N_THREADS];
	struct figures none;
	struct chaos chaos;

	start(&chaos, workers);
	for (int i = 0; i < N_THREADS; i++)
		must(pthread_create(&threads[i], NULL, run, &workers[i]) == 0);
	for (int i = 0; i < N_THREADS; i++)
		pthread_join(threads[i], NULL);
	remove_all(client, "s/");
	memset(&none, 0xff, sizeof(none));
	none.slots = 0;
	must(figures_await(client, &none));
	fsdp_close(client);
	chaos_stop(&chaos);
	printf("stream_stress: %d threads, %d rounds\n", N_THREADS, N_ROUNDS);
	return 0;
}
