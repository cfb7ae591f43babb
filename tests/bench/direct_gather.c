/*
 * Rows direct_gather_*: gathers by the ranks, on host memory. Each size is
 * measured with 2 and with 4 ranks, and the row shows the worse result. The
 * floor moves the same bytes with as many processes, each of which moves its
 * part without waiting for the others: by memcpy, or by the kernel of the cast.
 * Ranks and floor have the same CPUs, because the system may leave all ranks on
 * one CPU in rounds that are so short.
 * MPI takes its turns, too, where it is installed. `fsdp-bench collectives` has
 * more sizes.
 */
#include "contest.h"

#define KIB UINT64_C(1024)

static void run_variant(const struct bench *bench, const char *name,
			enum contender floor, uint64_t size, struct result *ret)
{
	const struct variant *variant = variant_find(ALL_GATHER, name);

	contest_row(bench,
		    &(struct contest_options){.placement = APART,
					      .has_mpi = variant->has_mpi},
		    variant, size, floor, ret);
}

#define FLAT_ROW(row, size)                                                    \
	void row(const struct bench *bench, struct result *ret)                \
	{                                                                      \
		run_variant(bench, "f32 flat", COPY, size, ret);               \
	}
#define CAST_ROW(row, size)                                                    \
	void row(const struct bench *bench, struct result *ret)                \
	{                                                                      \
		run_variant(bench, "f32 to bf16", CAST, size, ret);            \
	}

FLAT_ROW(direct_gather_64kib, 64 * KIB)
FLAT_ROW(direct_gather_1mib, KIB *KIB)
FLAT_ROW(direct_gather_4mib, 4 * KIB * KIB)
FLAT_ROW(direct_gather_64mib, 64 * KIB * KIB)
CAST_ROW(direct_gather_cast_64kib, 64 * KIB)
CAST_ROW(direct_gather_cast_1mib, KIB *KIB)
CAST_ROW(direct_gather_cast_4mib, 4 * KIB * KIB)
CAST_ROW(direct_gather_cast_64mib, 64 * KIB * KIB)
