/*
 * Rows direct_gather_*: gathers by the ranks, on host memory. Each size is
 * measured by 2 and by 4 ranks, and the row shows the worse of the two. The
 * floor moves the same bytes by as many processes, each its part, without any
 * agreement: by memcpy, or by the kernel of the cast. MPI, where it is
 * installed, takes its turns, too. `fsdp-bench collectives` has more sizes.
 */
#include "contest.h"

#define KIB UINT64_C(1024)

static void run_variant(const struct bench *bench, const char *name,
			enum bandwidth_kind kind, uint64_t size,
			struct result *ret)
{
	const struct variant *variant = variant_find(ALL_GATHER, name);
	struct contest contest;
	struct daemon daemon;
	struct score score;

	*ret = (struct result){0};
	daemon_start(&daemon, bench,
		     &(struct daemon_options){.is_unpinned = true});
	for (uint32_t n_ranks = 2; n_ranks <= 4; n_ranks += 2) {
		contest_open(&contest, bench, &daemon, n_ranks,
			     variant->has_mpi);
		contest_run(&contest, variant, size, bench->n_pairs, &score);
		contest_close(&contest);
		score_keep_worse(&score, kind, ret);
	}
	daemon_stop(&daemon);
}

#define COPY(row, size)                                                        \
	void row(const struct bench *bench, struct result *ret)                \
	{                                                                      \
		run_variant(bench, "f32 flat", BANDWIDTH_COPY, size, ret);     \
	}
#define CAST(row, size)                                                        \
	void row(const struct bench *bench, struct result *ret)                \
	{                                                                      \
		run_variant(bench, "f32 to bf16", BANDWIDTH_CAST, size, ret);  \
	}

COPY(direct_gather_64kib, 64 * KIB)
COPY(direct_gather_1mib, KIB *KIB)
COPY(direct_gather_4mib, 4 * KIB * KIB)
COPY(direct_gather_64mib, 64 * KIB * KIB)
CAST(direct_gather_cast_64kib, 64 * KIB)
CAST(direct_gather_cast_1mib, KIB *KIB)
CAST(direct_gather_cast_4mib, 4 * KIB * KIB)
CAST(direct_gather_cast_64mib, 64 * KIB * KIB)
