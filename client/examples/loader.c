/*
 * A data loader: makes batches in the broker's memory and hands them to a
 * trainer by ticket, through a FIFO. The batches themselves never move.
 *
 *   mkfifo batches
 *   trainer batches &
 *   loader batches 1000
 *
 * The budget is what holds the loader back: it may have four batches alive at
 * a time, so fsdp_alloc() waits until the trainer has released one.
 */
#include "note.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define N_ALIVE      4     /* batches */
#define TICKET_MS    60000 /* a trainer that takes longer is gone */
#define WAIT_FOREVER (-1)

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

/* What would be decoding and augmenting. */
static void fill(uint32_t *words, size_t n, uint32_t seed)
{
	for (size_t i = 0; i < n; i++)
		words[i] = seed = seed * 1664525 + 1013904223;
}

static int send_batch(struct fsdp_client *client, int fifo_fd, size_t n_words,
		      uint32_t seed)
{
	struct fsdp_spec spec = {
		.dtype = FSDP_U32, .n_dims = 1, .shape = {(int64_t)n_words}};
	struct fsdp_publication publication = {0};
	struct fsdp_tensor *tensor;
	struct note note;
	int r;

	r = fsdp_alloc(client, &spec, 1, NULL, WAIT_FOREVER, &tensor);
	if (r < 0)
		return r;
	fill(fsdp_data_mut(tensor), n_words, seed);
	note.sum = note_sum(fsdp_data(tensor), n_words);

	publication.tensor = tensor; /* without a name: tickets keep it */
	r = fsdp_publish(client, &publication, 1);
	if (r == 0)
		r = fsdp_ticket_make(tensor, 1, TICKET_MS, &note.ticket);
	if (r == 0 && write(fifo_fd, &note, sizeof(note)) != sizeof(note)) {
		perror("loader: write the note");
		exit(EXIT_FAILURE);
	}
	/* Our hold goes; the ticket keeps the batch until it is redeemed. */
	fsdp_free(tensor);
	return r;
}

int main(int argc, char **argv)
{
	size_t n_batches = argc > 2 ? strtoul(argv[2], NULL, 10) : 100;
	size_t size = argc > 3 ? strtoul(argv[3], NULL, 10) : 1 << 20;
	size_t n_words = size / sizeof(uint32_t);
	struct fsdp_connect_options options = {.budget = N_ALIVE * n_words *
							 sizeof(uint32_t)};
	struct fsdp_client *client;
	double start, seconds;
	int fifo_fd;

	if (argc < 2 || n_batches == 0 || n_words == 0) {
		fputs("usage: loader FIFO [batches [bytes per batch]]\n",
		      stderr);
		return 2;
	}
	if (fsdp_connect(&options, &client) < 0) {
		fprintf(stderr, "loader: %s\n", fsdp_error());
		return EXIT_FAILURE;
	}
	fifo_fd = open(argv[1], O_WRONLY | O_CLOEXEC); /* waits for a trainer */
	if (fifo_fd < 0) {
		perror("loader: open the FIFO");
		return EXIT_FAILURE;
	}
	start = now();
	for (size_t i = 0; i < n_batches; i++) {
		if (send_batch(client, fifo_fd, n_words, (uint32_t)i) < 0) {
			fprintf(stderr, "loader: %s\n", fsdp_error());
			return EXIT_FAILURE;
		}
	}
	seconds = now() - start;
	printf("loader: %zu batches, %.1f MB/s\n", n_batches,
	       (double)(n_batches * n_words * sizeof(uint32_t)) / seconds /
		       1e6);
	close(fifo_fd);
	fsdp_close(client);
	return EXIT_SUCCESS;
}
