/* Compares the code of the kernels, run on the CPU, with the definitions. */
#include "collective/host/kernel.h"
#include "cuda/kernels_row.h"
#include "tests/lib/check.h"
#include "tests/lib/device_code.h"
#include "tests/unit/cuda/kernels_fixture.h"

/* Launch the kernel on memory of the host, with a random number of blocks. */
static void run_case(struct dice *dice, struct kernels_case *launch)
{
	static struct kernels_row rows[CASE_MAX_ENTRIES];
	static uint64_t tiles[CASE_MAX_ENTRIES + 1];
	int exponent;
	const struct kernels_params params = {
		.rows = rows + launch->first,
		.tiles = tiles + launch->first,
		.from = launch->from,
		.to = launch->to,
		.factor = launch->factor,
		.reciprocal = 1 / launch->factor,
		.n_rows = launch->n,
		.is_scaled = launch->factor != 1,
		.has_reciprocal = frexp(launch->factor, &exponent) == 0.5,
	};
	struct error err = ERROR_NULL;

	for (uint32_t i = 0; i < launch->n_entries; i++) {
		int r = kernels_row_make(launch->kind, &launch->entries[i],
					 &rows[i], &err);

		cr_assert(eq(int, r, 0), "%s", err.msg);
		tiles[i + 1] = tiles[i] + kernels_row_count_tiles(&rows[i]);
	}
	device_code_run(launch->is_added ? DEVICE_GRAD_ADD
					 : (enum device_code)launch->kind,
			&params, 1 + dice_throw(dice, 5));
}

static void check_case(struct dice *dice, struct kernels_case *launch)
{
	uint8_t *want = case_expect(launch);
	uint64_t at;

	run_case(dice, launch);
	at = case_compare(launch->to, want, launch->to_size);
	cr_assert(eq(u64, at, launch->to_size), "%s",
		  case_describe(launch, at));
	free(want);
	case_deinit(launch);
}

static void check_kind(enum kernels_kind kind)
{
	static struct kernels_case launch;
	struct dice dice = {(uint64_t)kind};

	for (int i = 0; i < 150; i++) {
		case_throw(&dice, kind, 8, &launch);
		check_case(&dice, &launch);
	}
}

Test(device_code, copy_in_casts_chunks)
{
	check_kind(KERNELS_COPY_IN);
}

Test(device_code, copy_out_assembles_parameters)
{
	check_kind(KERNELS_COPY_OUT);
}

Test(device_code, chunk_cat_pads_casts_and_scales)
{
	check_kind(KERNELS_CHUNK_CAT);
}

Test(device_code, grad_out_divides_casts_and_adds)
{
	check_kind(KERNELS_GRAD_OUT);
}

/* --- against the host's engine ------------------------------------------- */

#define N_HOST 3000

/* Divide and cast one entry of random bits in both ways. */
static void check_host(struct dice *dice, uint32_t from, uint32_t to,
		       double divisor)
{
	static struct kernels_case launch;
	const struct kernels *host = kernels_best();
	uint8_t *want = case_alloc(N_HOST * sizeof(double));
	void *out = want;
	const void *in;

	launch = (struct kernels_case){
		.kind = KERNELS_GRAD_OUT,
		.n_entries = 1,
		.n = 1,
		.factor = divisor,
		.from_size = N_HOST * dtype_size(from),
		.to_size = N_HOST * dtype_size(to),
	};
	launch.entries[0] = (struct kernels_entry){
		.from_dtype = from,
		.to_dtype = to,
		.numel = N_HOST,
		.padded_numel = N_HOST,
	};
	launch.from = case_alloc(launch.from_size);
	launch.to = case_alloc(launch.to_size);
	for (uint64_t i = 0; i < launch.from_size; i++)
		launch.from[i] = (uint8_t)dice_next(dice);
	in = launch.from;
	host->fold[from][to](&out, 1, &in, 1, N_HOST, 1, divisor, false);
	run_case(dice, &launch);
	cr_assert(zero(int, memcmp(launch.to, want, launch.to_size)),
		  "%s to %s by %g", dtype_name(from), dtype_name(to), divisor);
	free(want);
	case_deinit(&launch);
}

Test(device_code, divisions_and_casts_give_the_bits_of_the_host)
{
	const double divisors[] = {1, 8, 3, 62.5};
	struct dice dice = {5};

	for (int i = 0; i < 16; i++) {
		for (int k = 0; k < 4; k++)
			check_host(&dice, case_floats[i % 4],
				   case_floats[i / 4], divisors[k]);
	}
	for (int i = 0; i < 8; i++) {
		uint32_t dtype = case_integers[i];
		uint32_t wide = dtype_accumulator(dtype);

		for (int k = 0; k < 3; k++) {
			check_host(&dice, dtype, wide, divisors[k]);
			check_host(&dice, wide, dtype, divisors[k]);
		}
	}
}
