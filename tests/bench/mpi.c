/*
 * Rows mpi_*: collectives by the ranks. The floor is the better one of the MPI
 * libraries that are installed. Without such a library these rows cannot be
 * measured.
 *
 * Each row shows the worse result of 2 and of 4 ranks. Ours and MPI's ranks are
 * placed alike: each on a CPU of its own, as far as there are enough, or all on
 * one. Gathers are flat, because gathers in place move nothing.
 */
#include "contest.h"

#define KIB UINT64_C(1024)

static void run_row(const struct bench *bench, enum placement placement,
		    const struct variant *variant, uint64_t size,
		    struct result *ret)
{
	contest_row(bench,
		    &(struct contest_options){.placement = placement,
					      .has_mpi = true},
		    variant, size, BETTER_MPI, ret);
}

#define ROW(row, collective, variant, size, placement)                         \
	void row(const struct bench *bench, struct result *ret)                \
	{                                                                      \
		run_row(bench, placement, variant_find(collective, variant),   \
			size, ret);                                            \
	}

ROW(mpi_gather_64kib, ALL_GATHER, "f32 flat", 64 * KIB, APART)
ROW(mpi_reduce_64kib, REDUCE_SCATTER, "f32", 64 * KIB, APART)
ROW(mpi_gather_1kib, ALL_GATHER, "f32 flat", KIB, APART)
ROW(mpi_reduce_1kib, REDUCE_SCATTER, "f32", KIB, APART)
ROW(mpi_reduce_1kib_crowded, REDUCE_SCATTER, "f32", KIB, CROWDED)
