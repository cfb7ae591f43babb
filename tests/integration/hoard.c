/*
 * Holds memory for the tests of fsdpctl and fsdp-exporter. Each command but
 * `names` keeps it until its standard input ends.
 *
 *   hoard memory      makes 100 MiB that a view of 16 bytes keeps, 3 MiB that a
 *                     ticket keeps, 2 MiB that are never published, and 1 MiB
 *                     in the staged bundle "staged/"; prints the ticket
 *   hoard board       makes the board of a communicator of one rank
 *   hoard run         makes a group and then a channel
 *   hoard hold NAME   holds that tensor, and prints a line
 *   hoard names P N   publishes N tensors of 4 zero bytes as P.0, P.1, ...
 *   hoard bundle NAME TEXT [X]
 *                     publishes a bundle with this metadata, and with the
 *                     member X, of 4 bytes
 *   hoard tied NAME   publishes 4 bytes that are tied to the session, and
 *                     prints a line
 */
#include "client/fsdp.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MIB ((int64_t)1 << 20)

static struct fsdp_client *client;

static void must(int r)
{
	if (r == 0)
		return;
	fprintf(stderr, "hoard: %s\n", fsdp_error());
	exit(EXIT_FAILURE);
}

static struct fsdp_spec spec_of(int64_t size)
{
	return (struct fsdp_spec){FSDP_U8, 1, {size}};
}

static struct fsdp_tensor *make(int64_t size)
{
	struct fsdp_spec spec = spec_of(size);
	struct fsdp_tensor *tensor;

	must(fsdp_alloc(client, &spec, 1, NULL, 0, &tensor));
	return tensor;
}

static void make_view(void)
{
	struct fsdp_tensor *base = make(100 * MIB), *view;
	struct fsdp_spec spec = spec_of(16);

	must(fsdp_view(base, &spec, NULL, 0, &view));
	fsdp_free(base);
}

static void make_ticket(void)
{
	struct fsdp_tensor *tensor = make(3 * MIB);
	struct fsdp_ticket ticket;

	must(fsdp_ticket_make(tensor, 2, 600000, &ticket));
	fsdp_free(tensor);
	for (size_t i = 0; i < sizeof(ticket.bytes); i++)
		printf("%02x", ticket.bytes[i]);
	puts("");
	fflush(stdout);
}

static void stage(void)
{
	struct fsdp_spec spec = spec_of(MIB);
	const char *name = "staged/x";
	struct fsdp_tensor *member;
	struct fsdp_bundle *bundle;

	must(fsdp_bundle_begin(client, "staged/", NULL, &bundle));
	must(fsdp_bundle_alloc(bundle, &name, &spec, 1, &member));
}

static void publish(const char *prefix, int n)
{
	for (int i = 0; i < n; i++) {
		struct fsdp_publication item = {.tensor = make(4)};
		char name[64];

		snprintf(name, sizeof(name), "%s.%d", prefix, i);
		item.name = name;
		must(fsdp_copy_in(item.tensor, 0, "\0\0\0", 4));
		must(fsdp_publish(client, &item, 1));
		fsdp_free(item.tensor);
	}
}

static void make_board(void)
{
	struct fsdp_comm *comm;

	must(fsdp_comm_join(client, "team/job", 1, 0, NULL, &comm));
	must(fsdp_barrier(comm, -1));
}

static void make_run(void)
{
	const struct fsdp_channel_options options = {.capacity = 64};
	const struct fsdp_param_spec param = {.name = "weight",
					      .spec = spec_of(64)};
	struct fsdp_channel *channel;
	struct fsdp_group *group;
	struct fsdp_comm *comm;

	must(fsdp_comm_join(client, "team/run", 1, 0, NULL, &comm));
	must(fsdp_group_register(comm, "group", &param, 1, NULL, &group));
	must(fsdp_channel_open(client, "team/batches", &options, FSDP_PRODUCER,
			       &channel));
}

static void hold(const char *name)
{
	struct fsdp_tensor *tensor;

	must(fsdp_get(client, &name, 1, NULL, &tensor));
	puts("holds it");
	fflush(stdout);
}

static void commit_bundle(const char *bundle_name, const char *metadata,
			  const char *member)
{
	char x[64], text[64];
	const char *names[] = {text, x};
	struct fsdp_spec specs[] = {spec_of((int64_t)strlen(metadata)),
				    spec_of(4)};
	struct fsdp_tensor *members[2];
	struct fsdp_bundle *bundle;

	snprintf(x, sizeof(x), "%s%s", bundle_name, member ? member : "");
	snprintf(text, sizeof(text), "%s__metadata__", bundle_name);
	must(fsdp_bundle_begin(client, bundle_name, NULL, &bundle));
	must(fsdp_bundle_alloc(bundle, names, specs, member ? 2 : 1, members));
	must(fsdp_copy_in(members[0], 0, metadata, strlen(metadata)));
	must(fsdp_bundle_commit(bundle, NULL));
}

static void tie(const char *name)
{
	struct fsdp_publication item = {
		.tensor = make(4), .name = name, .flags = FSDP_TIED};

	must(fsdp_publish(client, &item, 1));
	puts("published it");
	fflush(stdout);
}

static void wait_for_end(void)
{
	char byte;

	while (read(STDIN_FILENO, &byte, 1) > 0)
		;
}

int main(int argc, char **argv)
{
	must(fsdp_connect(NULL, &client));
	if (argc == 4 && strcmp(argv[1], "names") == 0) {
		publish(argv[2], atoi(argv[3]));
	} else if (argc >= 4 && strcmp(argv[1], "bundle") == 0) {
		commit_bundle(argv[2], argv[3], argv[4]);
	} else if (argc == 2 && strcmp(argv[1], "memory") == 0) {
		make_view();
		(void)make(2 * MIB);
		stage();
		make_ticket();
		wait_for_end();
	} else if (argc == 2 && strcmp(argv[1], "board") == 0) {
		make_board();
		wait_for_end();
	} else if (argc == 2 && strcmp(argv[1], "run") == 0) {
		make_run();
		wait_for_end();
	} else if (argc == 3 && strcmp(argv[1], "hold") == 0) {
		hold(argv[2]);
		wait_for_end();
	} else if (argc == 3 && strcmp(argv[1], "tied") == 0) {
		tie(argv[2]);
		wait_for_end();
	} else {
		return EXIT_FAILURE;
	}
	fsdp_close(client);
	return EXIT_SUCCESS;
}
