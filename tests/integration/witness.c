/*
 * witness NAME TEXT: holds the tensor NAME, and compares it with TEXT again and
 * again. Sometimes it gets the tensor again. It prints a line when it holds the
 * tensor, and ends when its standard input ends. It fails if the contents ever
 * differ.
 */
#include "client/fsdp.h"
#include <err.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#define ROUNDS_PER_GET 100

static struct fsdp_client *client;

static struct fsdp_tensor *get(const char *name)
{
	struct fsdp_tensor *tensor;

	if (fsdp_get(client, &name, 1, NULL, &tensor) < 0)
		errx(1, "get %s: %s", name, fsdp_error());
	return tensor;
}

static void compare(struct fsdp_tensor *tensor, const char *text)
{
	if (memcmp(fsdp_data(tensor), text, strlen(text)) != 0)
		errx(1, "the contents have changed");
}

static bool has_ended(void)
{
	struct pollfd in = {.fd = STDIN_FILENO, .events = POLLIN};
	char byte;

	return poll(&in, 1, 1) > 0 && read(STDIN_FILENO, &byte, 1) <= 0;
}

int main(int argc, char **argv)
{
	struct fsdp_tensor *held;

	if (argc != 3)
		errx(2, "usage: witness NAME TEXT");
	if (fsdp_connect(NULL, &client) < 0)
		errx(1, "%s", fsdp_error());
	held = get(argv[1]);
	puts("holds it");
	fflush(stdout);
	for (int round = 0; !has_ended(); round++) {
		compare(held, argv[2]);
		if (round % ROUNDS_PER_GET == 0) {
			struct fsdp_tensor *again = get(argv[1]);

			compare(again, argv[2]);
			fsdp_free(again);
		}
	}
	fsdp_free(held);
	return fsdp_close(client) < 0;
}
