/*
 * A trainer: takes batches from loaders by ticket, reads them in place, and
 * releases them. See loader.c.
 *
 * It ends when the last loader has closed the FIFO. A loader may die at any
 * moment: what it has handed over stays, because the broker owns the memory.
 */
#include "note.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

struct figures {
	size_t n_batches;
	uint64_t size;
	size_t n_wrong;
};

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static int train(struct fsdp_client *client, const struct note *note,
		 struct figures *figures)
{
	struct fsdp_tensor *tensor;
	struct fsdp_info info = {.struct_size = sizeof(info)};
	int r = fsdp_ticket_redeem(client, &note->ticket, 1, &tensor);

	if (r < 0)
		return r;
	fsdp_tensor_info(tensor, &info);
	/* Here would be the step; the memory is the loader's own, mapped. */
	if (note_sum(fsdp_data(tensor), info.size / sizeof(uint32_t)) !=
	    note->sum)
		figures->n_wrong++;
	figures->n_batches++;
	figures->size += info.size;
	fsdp_free(tensor); /* the loader may make another one now */
	return 0;
}

int main(int argc, char **argv)
{
	struct figures figures = {0};
	struct fsdp_client *client;
	struct note note;
	double start, seconds;
	int fifo_fd;

	if (argc != 2) {
		fputs("usage: trainer FIFO\n", stderr);
		return 2;
	}
	if (fsdp_connect(NULL, &client) < 0) {
		fprintf(stderr, "trainer: %s\n", fsdp_error());
		return EXIT_FAILURE;
	}
	fifo_fd = open(argv[1], O_RDONLY | O_CLOEXEC); /* waits for a loader */
	if (fifo_fd < 0) {
		perror("trainer: open the FIFO");
		return EXIT_FAILURE;
	}
	start = now();
	while (read(fifo_fd, &note, sizeof(note)) == sizeof(note)) {
		if (train(client, &note, &figures) < 0) {
			fprintf(stderr, "trainer: %s\n", fsdp_error());
			return EXIT_FAILURE;
		}
	}
	seconds = now() - start;
	printf("trainer: %zu batches, %zu wrong, %.1f MB/s\n",
	       figures.n_batches, figures.n_wrong,
	       (double)figures.size / seconds / 1e6);
	close(fifo_fd);
	fsdp_close(client);
	return figures.n_wrong ? EXIT_FAILURE : EXIT_SUCCESS;
}
