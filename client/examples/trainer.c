/*
 * A trainer: receives batches from loaders by a channel, reads them in place,
 * and releases them. See loader.c.
 *
 * It ends when the given number of loaders have finished or died. A loader may
 * die at any moment: the batches that it has sent stay, because the broker owns
 * the memory.
 */
#include "batch.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WAIT_FOREVER (-1)

struct figures {
	size_t n_batches;
	uint64_t size;
	size_t n_wrong;
	size_t n_finished; /* loaders that have finished or died */
};

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int train(const struct fsdp_item *item, struct figures *figures)
{
	struct fsdp_item_view words = {.struct_size = sizeof(words)};
	struct fsdp_item_view sum = {.struct_size = sizeof(sum)};
	int r = fsdp_item_view(item, BATCH_WORDS, &words);

	if (r == 0)
		r = fsdp_item_view(item, BATCH_SUM, &sum);
	if (r < 0)
		return r;
	/* A real trainer would do a step here. It reads the same memory that
	 * the loader wrote. */
	if (batch_sum(words.data, words.size / sizeof(uint32_t)) !=
	    *(const uint64_t *)sum.data)
		figures->n_wrong++;
	figures->n_batches++;
	figures->size += words.size;
	return 0;
}

static int receive(struct fsdp_channel *channel, struct figures *figures)
{
	struct fsdp_item *item;
	int r = fsdp_item_receive(channel, WAIT_FOREVER, &item);

	if (r == -EOWNERDEAD) {
		fprintf(stderr, "trainer: %s\n", fsdp_error());
		figures->n_finished++;
		return 0;
	}
	if (r < 0)
		return r;
	if (fsdp_item_n_parts(item) == BATCH_PARTS)
		r = train(item, figures);
	else
		figures->n_finished++;
	/* Afterwards a loader may write another batch there. */
	(void)fsdp_item_release(item);
	return r;
}

static int train_all(struct fsdp_client *client, const char *name,
		     size_t n_loaders, size_t size, struct figures *figures)
{
	struct fsdp_channel_options options = {
		.capacity = batch_capacity(size / sizeof(uint32_t)),
		.n_slots = BATCH_SLOTS,
		.timeout_ms = WAIT_FOREVER,
	};
	struct fsdp_channel *channel, *mine;
	int r = fsdp_channel_open(client, name, &options, FSDP_CONSUMER,
				  &channel);

	/* A producer that sends nothing keeps the channel from ending in the
	 * time between two loaders. */
	if (r == 0)
		r = fsdp_channel_open(client, name, &options, FSDP_PRODUCER,
				      &mine);
	while (r == 0 && figures->n_finished < n_loaders)
		r = receive(channel, figures);
	if (r == 0)
		r = fsdp_channel_close(mine);
	return r < 0 ? r : fsdp_channel_close(channel);
}

int main(int argc, char **argv)
{
	size_t n_loaders = argc > 2 ? strtoul(argv[2], NULL, 10) : 1;
	size_t size = argc > 3 ? strtoul(argv[3], NULL, 10) : 1 << 20;
	struct figures figures = {0};
	struct fsdp_client *client;
	double start, seconds;

	if (argc < 2 || argv[1][0] == '-' || n_loaders == 0 || size == 0) {
		fputs("usage: trainer CHANNEL [loaders [bytes per batch]]\n",
		      stderr);
		return 2;
	}
	if (fsdp_connect(NULL, &client) < 0) {
		fprintf(stderr, "trainer: %s\n", fsdp_error());
		return EXIT_FAILURE;
	}
	start = now();
	if (train_all(client, argv[1], n_loaders, size, &figures) < 0) {
		fprintf(stderr, "trainer: %s\n", fsdp_error());
		return EXIT_FAILURE;
	}
	seconds = now() - start;
	printf("trainer: %zu batches, %zu wrong, %.1f MB/s\n",
	       figures.n_batches, figures.n_wrong,
	       (double)figures.size / seconds / 1e6);
	fsdp_close(client);
	return figures.n_wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
