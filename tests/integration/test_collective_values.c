/*
 * Tests the results of collectives on ordinary memory. In random calls every
 * rank must get what a plain computation gives, in whatever order the ranks
 * arrive. The calls follow from a seed, which is printed if a result is wrong;
 * FSDP_TEST_COLLECTIVE_SEED repeats them.
 */
#include "tests/lib/chance.h"
#include "tests/lib/check.h"
#include "tests/lib/crew.h"
#include "tests/lib/scalar.h"
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAX_WORLD 4
#define N_CALLS   60
/* Size of a slot of a box. Large calls need several slots. */
#define SLOT (UINT64_C(256) << 10)

static uint64_t seed;

static void setup(void)
{
	crew_setup();
	seed = choose_seed("FSDP_TEST_COLLECTIVE_SEED");
}

CHECKED_SUITE(collective_values, setup, crew_teardown, .timeout = 300);

static struct fsdp_comm *comm(void)
{
	return trainer()->comm;
}

/* --- random calls -------------------------------------------------------- */

enum kind {
	BROADCAST,
	ALL_REDUCE,
	REDUCE_TO,
	ALL_GATHER,
	GATHER,
	SCATTER,
	REDUCE_SCATTER,
	ALL_TO_ALL,
	N_KINDS,
};

static const char *const kind_names[N_KINDS] = {
	"broadcast", "all_reduce", "reduce_to",      "all_gather",
	"gather",    "scatter",    "reduce_scatter", "all_to_all"};

struct plan_of_call {
	uint64_t seed; /* of its values */
	uint32_t world;
	enum kind kind;
	enum fsdp_dtype dtype;
	enum fsdp_reduction how;
	uint32_t root;
	bool is_in_place;
	uint32_t unaligned; /* mask of ranks whose inputs are not aligned */
	/* count[s][d] is the number of elements that rank s has for rank d. */
	uint64_t count[MAX_WORLD][MAX_WORLD];
};

static const enum fsdp_dtype dtypes[] = {
	FSDP_BOOL, FSDP_U8,  FSDP_I8,   FSDP_U16,    FSDP_I16,  FSDP_U32,
	FSDP_I32,  FSDP_U64, FSDP_I64,  FSDP_F16,    FSDP_BF16, FSDP_F32,
	FSDP_F64,  FSDP_C64, FSDP_C128, FSDP_F8_E4M3};

static bool is_fold(enum kind kind)
{
	return kind == ALL_REDUCE || kind == REDUCE_TO ||
	       kind == REDUCE_SCATTER;
}

/* Returns whether fsdp_comm.h defines the reduction for this dtype. */
static bool is_defined(enum fsdp_dtype dtype, enum fsdp_reduction how)
{
	bool is_bitwise = how >= FSDP_BAND;

	if (dtype == FSDP_BOOL)
		return how != FSDP_MEAN;
	if (dtype == FSDP_C64 || dtype == FSDP_C128)
		return how <= FSDP_MEAN;
	if (scalar_is_float(dtype))
		return !is_bitwise;
	return scalar_is_integer(dtype);
}

/* Draw a count that is mostly small, sometimes needs several rounds, and
 * sometimes is 0. */
static uint64_t draw_count(struct chance *chance, enum fsdp_dtype dtype)
{
	switch (draw(chance, 8)) {
	case 0:
		return 0;
	case 1:
		return draw(chance, (uint32_t)(5 * SLOT)) /
		       fsdp_dtype_size(dtype);
	case 2:
		return SLOT / fsdp_dtype_size(dtype) + draw(chance, 3) - 1;
	default:
		return 1 + draw(chance, 300);
	}
}

static void draw_counts(struct chance *chance, struct plan_of_call *call)
{
	uint64_t common = draw_count(chance, call->dtype);

	for (uint32_t s = 0; s < call->world; s++) {
		uint64_t row = draw_count(chance, call->dtype);

		for (uint32_t d = 0; d < call->world; d++)
			call->count[s][d] =
				call->kind == ALL_TO_ALL
					? draw_count(chance, call->dtype)
				: call->kind == ALL_GATHER ||
						call->kind == GATHER
					? row
					: common;
	}
	if (call->kind == SCATTER || call->kind == REDUCE_SCATTER)
		for (uint32_t d = 0; d < call->world; d++) {
			uint64_t column = draw_count(chance, call->dtype);

			for (uint32_t s = 0; s < call->world; s++)
				call->count[s][d] = column;
		}
}

static void draw_call(struct chance *chance, uint32_t world,
		      struct plan_of_call *ret)
{
	*ret = (struct plan_of_call){.world = world};
	ret->seed = (uint64_t)draw(chance, 1 << 30) << 20;
	ret->kind = draw(chance, N_KINDS);
	do {
		ret->dtype =
			dtypes[draw(chance, sizeof(dtypes) / sizeof(*dtypes))];
		ret->how = draw(chance, 8);
	} while (is_fold(ret->kind) && !is_defined(ret->dtype, ret->how));
	ret->root = draw(chance, world);
	ret->is_in_place = draw(chance, 2);
	ret->unaligned = draw(chance, 1 << MAX_WORLD);
	draw_counts(chance, ret);
}

/* --- values -------------------------------------------------------------- */

static uint64_t mix_bits(uint64_t x)
{
	x ^= x >> 31;
	x *= UINT64_C(0x7fb5d329728ea185);
	x ^= x >> 27;
	x *= UINT64_C(0x81dadef4bc2dd44d);
	return x ^ x >> 33;
}

static bool is_complex(enum fsdp_dtype dtype)
{
	return dtype == FSDP_C64 || dtype == FSDP_C128;
}

/* Complex numbers are checked as pairs of floats. */
static enum fsdp_dtype scalar_of(enum fsdp_dtype dtype)
{
	if (dtype == FSDP_C64)
		return FSDP_F32;
	return dtype == FSDP_C128 ? FSDP_F64 : dtype;
}

static uint64_t scalars(enum fsdp_dtype dtype)
{
	return is_complex(dtype) ? 2 : 1;
}

/* Returns the bits of scalar `i` that rank `s` has for rank `d`. */
static uint64_t value(const struct plan_of_call *call, uint32_t s, uint32_t d,
		      uint64_t i)
{
	uint64_t bits = mix_bits(call->seed ^ mix_bits(i * 64 + s * 8 + d));
	enum fsdp_dtype dtype = scalar_of(call->dtype);

	if (dtype == FSDP_BOOL)
		return bits & 1;
	if (scalar_is_float(dtype))
		return scalar_encode(
			dtype, (double)(int64_t)(bits % 4097 - 2048) / 256);
	return scalar_is_integer(dtype) ? scalar_narrow(dtype, bits)
					: bits & 0xff;
}

static uint8_t *new_values(const struct plan_of_call *call, uint32_t s,
			   uint32_t d)
{
	enum fsdp_dtype dtype = scalar_of(call->dtype);
	uint64_t n = call->count[s][d] * scalars(call->dtype);
	uint8_t *data = calloc(n + 1, fsdp_dtype_size(dtype));

	for (uint64_t i = 0; i < n; i++)
		scalar_store(dtype, data, i, value(call, s, d, i));
	return data;
}

static double pair_of_floats(enum fsdp_reduction how, enum fsdp_dtype acc,
			     double a, double b)
{
	switch (how) {
	case FSDP_PRODUCT:
		return scalar_multiply(acc, a, b);
	case FSDP_MIN:
		return a < b ? a : b;
	case FSDP_MAX:
		return a > b ? a : b;
	default:
		return scalar_add(acc, a, b);
	}
}

static bool is_less(enum fsdp_dtype dtype, uint64_t a, uint64_t b)
{
	return scalar_is_signed(dtype) ? (int64_t)a < (int64_t)b : a < b;
}

/* The numbers are widened to 64 bits. */
static uint64_t pair_of_integers(enum fsdp_reduction how, enum fsdp_dtype dtype,
				 uint64_t a, uint64_t b)
{
	switch (how) {
	case FSDP_PRODUCT:
		return scalar_widen(dtype, scalar_narrow(dtype, a * b));
	case FSDP_MIN:
		return is_less(dtype, a, b) ? a : b;
	case FSDP_MAX:
		return is_less(dtype, a, b) ? b : a;
	case FSDP_BAND:
		return a & b;
	case FSDP_BOR:
		return a | b;
	case FSDP_BXOR:
		return a ^ b;
	default:
		return a + b;
	}
}

static uint64_t reduce_floats(const struct plan_of_call *call, uint32_t d,
			      uint64_t i)
{
	enum fsdp_dtype dtype = scalar_of(call->dtype);
	enum fsdp_dtype acc = scalar_accumulator(dtype);
	double sum = scalar_decode(dtype, value(call, 0, d, i));

	for (uint32_t s = 1; s < call->world; s++)
		sum = pair_of_floats(
			call->how, acc, sum,
			scalar_decode(dtype, value(call, s, d, i)));
	if (call->how == FSDP_MEAN)
		sum = scalar_divide(acc, sum, call->world);
	return scalar_encode(dtype, sum);
}

static uint64_t reduce_bools(const struct plan_of_call *call, uint32_t d,
			     uint64_t i)
{
	uint64_t sum = value(call, 0, d, i);
	bool is_and = call->how == FSDP_PRODUCT || call->how == FSDP_MIN ||
		      call->how == FSDP_BAND;

	for (uint32_t s = 1; s < call->world; s++) {
		uint64_t next = value(call, s, d, i);

		sum = call->how == FSDP_BXOR ? sum ^ next
		      : is_and               ? sum & next
					     : sum | next;
	}
	return sum;
}

/* Returns the reduction of scalar `i` for rank `d`. */
static uint64_t reduced(const struct plan_of_call *call, uint32_t d, uint64_t i)
{
	enum fsdp_dtype dtype = scalar_of(call->dtype);
	uint64_t sum;

	if (scalar_is_float(dtype))
		return reduce_floats(call, d, i);
	if (dtype == FSDP_BOOL)
		return reduce_bools(call, d, i);
	sum = scalar_widen(dtype, value(call, 0, d, i));
	for (uint32_t s = 1; s < call->world; s++)
		sum = pair_of_integers(
			call->how, dtype, sum,
			scalar_widen(dtype, value(call, s, d, i)));
	if (call->how == FSDP_MEAN)
		sum = scalar_divide_integer(dtype, sum, call->world);
	return scalar_narrow(dtype, sum);
}

/* --- making a call ------------------------------------------------------- */

/* A rank has this memory in a call. */
struct memory {
	uint8_t *in[MAX_WORLD], *out[MAX_WORLD];
	struct fsdp_part in_parts[MAX_WORLD], out_parts[MAX_WORLD];
};

/* Returns whether each rank has one input for all ranks. It is the input for
 * rank 0 then. */
static bool is_for_all(enum kind kind)
{
	return kind != SCATTER && kind != REDUCE_SCATTER && kind != ALL_TO_ALL;
}

static uint32_t target(const struct plan_of_call *call, uint32_t d)
{
	return is_for_all(call->kind) ? 0 : d;
}

/* Returns the address of the input. It is moved by a byte, for which
 * new_values() leaves space, if this rank's inputs are not aligned. */
static void *place_input(const struct plan_of_call *call, uint32_t rank,
			 uint32_t k, uint8_t *in)
{
	uint64_t n = call->count[rank][k];

	if (!(call->unaligned >> rank & 1))
		return in;
	return memmove(in + 1, in, n * fsdp_dtype_size(call->dtype));
}

static void memory_make(const struct plan_of_call *call, uint32_t rank,
			struct memory *ret)
{
	for (uint32_t k = 0; k < call->world; k++) {
		uint64_t n = call->count[k][rank];

		ret->in[k] = new_values(call, rank, target(call, k));
		ret->in_parts[k] = (struct fsdp_part){
			place_input(call, rank, k, ret->in[k]),
			call->count[rank][k]};
		ret->out[k] = calloc(n + 1, fsdp_dtype_size(call->dtype));
		ret->out_parts[k] = (struct fsdp_part){ret->out[k], n};
	}
}

static void memory_free(const struct plan_of_call *call, struct memory *memory)
{
	for (uint32_t k = 0; k < call->world; k++) {
		free(memory->in[k]);
		free(memory->out[k]);
	}
}

static int make_copy(const struct plan_of_call *c, uint32_t rank,
		     struct memory *m)
{
	uint64_t n = c->count[rank][0], own = c->count[c->root][rank];
	bool is_root = rank == c->root;

	switch (c->kind) {
	case BROADCAST:
		if (is_root)
			memcpy(m->out[rank], m->in_parts[0].data,
			       n * fsdp_dtype_size(c->dtype));
		return fsdp_broadcast(comm(), c->dtype, m->out[c->root], own,
				      c->root);
	case ALL_GATHER:
		if (c->is_in_place)
			memcpy(m->out[rank], m->in_parts[0].data,
			       n * fsdp_dtype_size(c->dtype));
		return fsdp_all_gather(comm(), c->dtype,
				       c->is_in_place ? m->out[rank]
						      : m->in_parts[0].data,
				       n, m->out_parts);
	case GATHER:
		return fsdp_gather_to(comm(), c->dtype, m->in_parts[0].data, n,
				      is_root ? m->out_parts : NULL, c->root);
	case SCATTER:
		return fsdp_scatter_from(comm(), c->dtype,
					 is_root ? m->in_parts : NULL,
					 m->out[c->root], own, c->root);
	default:
		return fsdp_all_to_all(comm(), c->dtype, m->in_parts,
				       m->out_parts);
	}
}

static int make_fold(const struct plan_of_call *c, uint32_t rank,
		     struct memory *m)
{
	uint64_t n = c->count[rank][0], own = c->count[0][rank];
	void *in = m->in_parts[0].data;

	if (c->is_in_place && c->kind != REDUCE_SCATTER) {
		in = m->out[0];
		memcpy(in, m->in_parts[0].data, n * fsdp_dtype_size(c->dtype));
	}
	if (c->is_in_place && c->kind == REDUCE_SCATTER) {
		memcpy(m->out[0], m->in_parts[rank].data,
		       own * fsdp_dtype_size(c->dtype));
		m->in_parts[rank].data = m->out[0];
	}
	switch (c->kind) {
	case ALL_REDUCE:
		return fsdp_all_reduce(comm(), c->dtype, c->how, in, m->out[0],
				       n);
	case REDUCE_TO:
		return fsdp_reduce_to(
			comm(), c->dtype, c->how, in,
			rank == c->root || c->is_in_place ? m->out[0] : NULL, n,
			c->root);
	default:
		return fsdp_reduce_scatter(comm(), c->dtype, c->how,
					   m->in_parts, m->out[0], own);
	}
}

/* Returns whether `out` has the values of rank `s` for this rank, or the
 * reduction for this rank. */
static bool is_right(const struct plan_of_call *c, uint32_t rank, uint32_t s,
		     const uint8_t *out, uint64_t count)
{
	enum fsdp_dtype dtype = scalar_of(c->dtype);
	uint64_t n = count * scalars(c->dtype);
	uint32_t d = target(c, rank);

	for (uint64_t i = 0; i < n; i++) {
		uint64_t want =
			is_fold(c->kind) ? reduced(c, d, i) : value(c, s, d, i);
		uint64_t is = scalar_load(dtype, out, i);

		if (scalar_is_same(dtype, is, want))
			continue;
		fprintf(stderr,
			"rank %u of %u: %s of %s (%d), root %u, seed %llu: "
			"scalar %llu of %llu from rank %u is %llx, not %llx\n",
			rank, c->world, kind_names[c->kind],
			fsdp_dtype_name(c->dtype), (int)c->how, c->root,
			(unsigned long long)seed, (unsigned long long)i,
			(unsigned long long)n, s, (unsigned long long)is,
			(unsigned long long)want);
		return false;
	}
	return true;
}

static bool is_all_right(const struct plan_of_call *c, uint32_t rank,
			 const struct memory *m)
{
	bool is_root = rank == c->root;
	bool is_it = true;

	switch (c->kind) {
	case ALL_REDUCE:
	case REDUCE_SCATTER:
		return is_right(c, rank, 0, m->out[0], c->count[0][rank]);
	case REDUCE_TO:
		return !is_root ||
		       is_right(c, rank, 0, m->out[0], c->count[0][rank]);
	case BROADCAST:
	case SCATTER:
		return is_right(c, rank, c->root, m->out[c->root],
				c->count[c->root][rank]);
	default:
		for (uint32_t s = 0; s < c->world && is_it; s++)
			is_it = (c->kind == GATHER && !is_root) ||
				is_right(c, rank, s, m->out[s],
					 c->count[s][rank]);
		return is_it;
	}
}

/* fsdp_fold() must give the same result in one rank that has the inputs of all
 * ranks. */
static bool is_fold_right(const struct plan_of_call *c, uint32_t rank)
{
	uint64_t n = c->count[0][rank];
	uint8_t *out = calloc(n + 1, fsdp_dtype_size(c->dtype));
	uint8_t *in[MAX_WORLD];
	int r;

	for (uint32_t s = 0; s < c->world; s++)
		in[s] = new_values(c, s, target(c, rank));
	r = fsdp_fold(c->dtype, c->how, (const void *const *)in, c->world, out,
		      n);
	if (r == 0 && !is_right(c, rank, 0, out, n))
		r = -EIO;
	for (uint32_t s = 0; s < c->world; s++)
		free(in[s]);
	free(out);
	return r == 0;
}

static int make_call(const struct plan_of_call *c)
{
	uint32_t rank = rank_self();
	struct memory memory;
	int r;

	memory_make(c, rank, &memory);
	r = rank_note(is_fold(c->kind) ? make_fold(c, rank, &memory)
				       : make_copy(c, rank, &memory));
	if (r == 0 && !is_all_right(c, rank, &memory))
		r = -EIO;
	if (r == 0 && is_fold(c->kind) && !is_fold_right(c, rank))
		r = -EIO;
	memory_free(c, &memory);
	return r;
}

static int make_calls(void)
{
	struct chance chance = {seed}, whim = {seed + 1 + rank_self()};
	struct plan_of_call call;
	int r = 0;

	for (int i = 0; i < N_CALLS && r == 0; i++) {
		draw_call(&chance, rank_world(), &call);
		for (uint32_t k = draw(&whim, 4); k > 0; k--)
			sched_yield();
		r = make_call(&call);
	}
	return r;
}

static void expect_right(uint32_t world)
{
	crew_start(world, &(struct crew){.n_layers = 0});
	cr_assert(zero(int, ranks_run(&ranks, make_calls)), "seed %llu",
		  (unsigned long long)seed);
}

Test(collective_values, one_rank_gets_the_values_of_a_plain_computation)
{
	expect_right(1);
}

Test(collective_values, two_ranks_get_the_values_of_a_plain_computation)
{
	expect_right(2);
}

Test(collective_values, three_ranks_get_the_values_of_a_plain_computation)
{
	expect_right(3);
}

Test(collective_values, four_ranks_get_the_values_of_a_plain_computation)
{
	expect_right(4);
}
