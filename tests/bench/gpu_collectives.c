/*
 * Rows gpu_all_gather and gpu_reduce_scatter: a whole iteration of a trainer
 * (see rank.h), against the bare call of NCCL for the same size, in rounds that
 * take turns. Sizes are those of the whole parameters.
 */
#include "child.h"
#include "daemon.h"
#include "gpu_rank.h"
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>

#define MIB            (UINT64_C(1) << 20)
#define ROUND_NS       20000000
#define MAX_ITERATIONS 50

struct match {
	const struct gpu *gpu;
	struct gpu_mesh *mesh;
	struct party ours, bare;
	uint32_t n_prepared;
};

static double run_round(struct party *party, struct stage_order *order)
{
	order->verb = STAGE_RUN;
	party_order(party, order);
	return stage_time(party->stage);
}

static void give(struct match *match, struct stage_order *order, uint32_t verb)
{
	order->verb = verb;
	party_order(&match->ours, order);
	party_order(&match->bare, order);
}

static void measure(struct match *match, struct stage_order *order,
		    struct result *ret)
{
	unsigned n_pairs = match->gpu->bench->is_quick ? 5 : 11;
	struct pairs pairs = PAIRS_NULL;
	double n;

	give(match, order, STAGE_PREPARE);
	order->n_iterations = 1;
	order->n_warm = 1;
	n = ROUND_NS / run_round(&match->ours, order);
	order->n_iterations = n < 1                ? 1
			      : n > MAX_ITERATIONS ? MAX_ITERATIONS
						   : (uint32_t)n;
	for (unsigned i = 0; i < n_pairs; i++) {
		samples_add(&pairs.floor, run_round(&match->bare, order));
		samples_add(&pairs.ours, run_round(&match->ours, order));
		pairs_close(&pairs);
	}
	give(match, order, STAGE_RELEASE);
	pairs_result(&pairs, 1000, ret);
	pairs_deinit(&pairs);
}

static void run_variant(struct match *match, const struct gpu_variant *variant,
			uint64_t size)
{
	struct stage_order order = {.collective = variant->collective,
				    .variant =
					    (uint32_t)(variant - gpu_variants),
				    .number = match->n_prepared++,
				    .size = size};
	struct gpu_line line = {
		.name = variant->collective == ALL_GATHER
				? "gpu_all_gather"
				: "gpu_reduce_scatter",
		.unit = "us",
		.size = size,
		.bus_factor = (GPU_N_RANKS - 1.0) / GPU_N_RANKS,
	};
	char text[32], name[64];

	measure(match, &order, &line.result);
	snprintf(name, sizeof(name), "%s, %s", variant->name,
		 gpu_format_size(size, text));
	line.variant = name;
	gpu_print(match->gpu, &line);
}

/* A child finds out whether this node has NCCL, because that needs the
 * driver. */
struct answer {
	int r;
	char sentence[512];
};

static void ask(int sock_fd, void *data)
{
	struct answer *answer = data;
	uint8_t id[FSDP_NCCL_ID_SIZE];

	answer->r = fsdp_nccl_id(id);
	if (answer->r < 0)
		snprintf(answer->sentence, sizeof(answer->sentence), "%s",
			 fsdp_error());
	message_send(sock_fd, answer, sizeof(*answer));
}

static bool has_nccl(const struct gpu *gpu)
{
	struct answer answer = {0};
	struct child child;

	child_start(&child, gpu->bench->client_cpu, ask, &answer);
	message_receive(child.sock_fd, &answer, sizeof(answer));
	child_wait(&child);
	if (answer.r == -ENODEV || answer.r == -ENOSYS) {
		gpu_leave_out("collectives", answer.sentence);
		return false;
	}
	if (answer.r < 0)
		die("%s", answer.sentence);
	return true;
}

/* NCCL refuses two ranks of one process on one device. */
static bool has_devices(const struct gpu *gpu,
			const struct gpu_variant *variant)
{
	if (variant->executor == FSDP_EXECUTOR_RANK ||
	    gpu->n_devices >= GPU_N_RANKS)
		return true;
	gpu_leave_out("collectives by the worker",
		      "a device for each rank is needed");
	return false;
}

static void open_match(struct match *match, const struct daemon *daemon)
{
	struct gpu_mesh *mesh =
		mmap(NULL, sizeof(*mesh), PROT_READ | PROT_WRITE,
		     MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (mesh == MAP_FAILED)
		die("map memory: %m");
	mesh->gpu = match->gpu;
	mesh->socket = daemon->socket;
	match->mesh = mesh;
	party_start(&match->ours, match->gpu->bench, "ranks", GPU_N_RANKS,
		    ANYWHERE, gpu_rank_serve, mesh);
	party_start(&match->bare, match->gpu->bench, "NCCL", GPU_N_RANKS,
		    ANYWHERE, gpu_bare_serve, mesh);
}

void gpu_collectives(const struct gpu *gpu)
{
	static const uint64_t all[] = {MIB,      4 * MIB,   16 * MIB,
				       64 * MIB, 256 * MIB, 0};
	static const uint64_t quick[] = {4 * MIB, 64 * MIB, 0};
	static const uint64_t small[] = {MIB / 16, 0};
	const uint64_t *sizes = gpu->is_fake           ? small
				: gpu->bench->is_quick ? quick
						       : all;
	struct match match = {.gpu = gpu};
	struct daemon daemon;

	if (!has_nccl(gpu))
		return;
	daemon_start(&daemon, gpu->bench,
		     &(struct daemon_options){.is_unpinned = true});
	open_match(&match, &daemon);
	for (size_t i = 0; i < N_GPU_VARIANTS; i++) {
		if (!has_devices(gpu, &gpu_variants[i]))
			continue;
		for (const uint64_t *size = sizes; *size; size++)
			run_variant(&match, &gpu_variants[i], *size);
	}
	party_stop(&match.bare);
	party_stop(&match.ours);
	munmap(match.mesh, sizeof(*match.mesh));
	daemon_stop(&daemon);
}
