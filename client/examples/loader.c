/*
 * A data loader: writes batches into the buffers of a channel, where a trainer
 * reads them in place.
 *
 *   trainer demo/batches &
 *   loader demo/batches 1000
 *
 * The number of buffers limits how far the loader can be ahead: after four
 * batches, fsdp_item_begin() waits until the trainer has released one.
 */
#include "batch.h"

#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define WAIT_FOREVER (-1)

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* A real loader would decode and augment samples here. */
static void fill(uint32_t *words, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		words[i] = seed = seed * 1664525 + 1013904223;
}

static int write_batch(struct fsdp_item *item, size_t n_words, uint32_t seed)
{
	struct fsdp_spec words = {
		.dtype = FSDP_U32, .n_dims = 1, .shape = {(int64_t)n_words}};
	struct fsdp_spec sum = {.dtype = FSDP_U64};
	void *at;
	uint32_t *data;
	int r = fsdp_item_part(item, &words, &at);

	if (r < 0)
		return r;
	data = at;
	fill(data, n_words, seed);
	r = fsdp_item_part(item, &sum, &at);
	if (r == 0)
		*(uint64_t *)at = batch_sum(data, n_words);
	return r;
}

static int send_batch(struct fsdp_channel *channel, size_t n_words,
		      uint32_t seed)
{
	struct fsdp_item *item;
	int r = fsdp_item_begin(channel, WAIT_FOREVER, &item);

	if (r < 0)
		return r;
	r = write_batch(item, n_words, seed);
	if (r < 0) {
		fsdp_item_cancel(item);
		return r;
	}
	return fsdp_item_send(item);
}

/* Send an item without arrays. The trainer counts these items, to know how many
 * loaders have finished. */
static int say_goodbye(struct fsdp_channel *channel)
{
	struct fsdp_item *item;
	int r = fsdp_item_begin(channel, WAIT_FOREVER, &item);

	return r < 0 ? r : fsdp_item_send(item);
}

static int load(struct fsdp_client *client, const char *name, size_t n_batches,
		size_t n_words)
{
	/* Without a capacity the call waits until the trainer has made the
	 * channel. */
	struct fsdp_channel_options options = {.timeout_ms = WAIT_FOREVER};
	struct fsdp_channel *channel;
	int r = fsdp_channel_open(client, name, &options, FSDP_PRODUCER,
				  &channel);

	for (size_t i = 0; r == 0 && i < n_batches; i++)
		r = send_batch(channel, n_words, (uint32_t)i);
	if (r == 0)
		r = say_goodbye(channel);
	return r < 0 ? r : fsdp_channel_close(channel);
}

int main(int argc, char **argv)
{
	size_t n_batches = argc > 2 ? strtoul(argv[2], NULL, 10) : 100;
	size_t size = argc > 3 ? strtoul(argv[3], NULL, 10) : 1 << 20;
	size_t n_words = size / sizeof(uint32_t);
	struct fsdp_client *client;
	double start, seconds;

	if (argc < 2 || argv[1][0] == '-' || n_batches == 0 || n_words == 0) {
		fputs("usage: loader CHANNEL [batches [bytes per batch]]\n",
		      stderr);
		return 2;
	}
	if (fsdp_connect(NULL, &client) < 0) {
		fprintf(stderr, "loader: %s\n", fsdp_error());
		return EXIT_FAILURE;
	}
	start = now();
	if (load(client, argv[1], n_batches, n_words) < 0) {
		fprintf(stderr, "loader: %s\n", fsdp_error());
		return EXIT_FAILURE;
	}
	seconds = now() - start;
	printf("loader: %zu batches, %.1f MB/s\n", n_batches,
	       (double)(n_batches * n_words * sizeof(uint32_t)) / seconds /
		       1e6);
	fsdp_close(client);
	return EXIT_SUCCESS;
}
