/*
 * Row sandbox_ping: a ping of a broker in its sandbox (the system calls and the
 * files that it gave up). The floor is a ping of a broker with `sandbox = no`,
 * in turns with ours.
 */
#include "bench.h"
#include "daemon.h"
#include "fsdp.h"
#include <limits.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define BLOCK 512

struct side {
	char dir[PATH_MAX];
	struct bench bench; /* with a directory of its own */
	struct daemon daemon;
	struct fsdp_client *client;
};

static void side_open(struct side *side, const struct bench *bench,
		      const char *name, const char *config)
{
	const struct daemon_options options = {.config = config};

	snprintf(side->dir, sizeof(side->dir), "%s/%s", bench->dir, name);
	sys(mkdir(side->dir, 0700), side->dir);
	side->bench = *bench;
	side->bench.dir = side->dir;
	daemon_start(&side->daemon, &side->bench, &options);
	side->client = client_open(side->daemon.socket);
}

static void side_close(struct side *side)
{
	static const char *const files[] = {"fsdpd.conf", "fsdpd.log"};
	char path[PATH_MAX + 16];

	fsdp_close(side->client);
	daemon_stop(&side->daemon);
	for (size_t i = 0; i < sizeof(files) / sizeof(*files); i++) {
		snprintf(path, sizeof(path), "%s/%s", side->dir, files[i]);
		unlink(path);
	}
	rmdir(side->dir);
}

static void block(struct side *side, struct samples *samples)
{
	for (int i = 0; i < BLOCK; i++) {
		uint64_t start = now_ns();

		must(fsdp_ping(side->client), "ping");
		samples_add(samples, (double)(now_ns() - start));
	}
}

void sandbox_ping(const struct bench *bench, struct result *ret)
{
	struct pairs pairs = PAIRS_NULL;
	struct repeats repeats;
	struct samples warm_up = SAMPLES_NULL;
	static struct side without, with;

	side_open(&without, bench, "without", "[access]\nsandbox = no\n");
	side_open(&with, bench, "with", NULL);
	block(&without, &warm_up);
	block(&with, &warm_up);
	samples_deinit(&warm_up);
	repeats = repeats_begin(bench, bench->n_pairs);
	while (pairs_next(&pairs, &repeats)) {
		block(&without, &pairs.floor);
		block(&with, &pairs.ours);
		pairs_close(&pairs);
	}
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
	side_close(&with);
	side_close(&without);
}
