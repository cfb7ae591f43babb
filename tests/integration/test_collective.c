/*
 * Collectives on ordinary memory: every rank gets what one that computes
 * everything by itself would have, whoever comes first, and nobody waits for
 * ever, whoever dies, leaves, is late or calls something else.
 */
#include "tests/lib/chance.h"
#include "tests/lib/chaos.h"
#include "tests/lib/daemon.h"
#include "tests/lib/leaks.h"
#include "tests/lib/ranks.h"
#include "tests/lib/scalar.h"
#include "tests/lib/trainer.h"
#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_WORLD 4
#define N_CALLS   60
/* Bytes of a slot of a box, and of what is beyond several of them. */
#define SLOT (UINT64_C(256) << 10)

static struct chaos chaos; /* its broker */
static struct ranks ranks;
static char plan[64]; /* of the rank that is to die */
static uint64_t seed;

static void setup(void)
{
	chaos_start(&chaos, NULL);
	(void)snprintf(plan, sizeof(plan), "%s/rank_plan", chaos.dir);
	seed = choose_seed("FSDP_TEST_COLLECTIVE_SEED");
}

static void teardown(void)
{
	ranks_stop(&ranks);
	(void)unlink(plan);
	chaos_stop(&chaos);
}

CHECKED_SUITE(collective, setup, teardown, .timeout = 120);

static int arm(void)
{
	return setenv("FSDP_KILL_PLAN", plan, 1);
}

static int join(void)
{
	return trainer_join();
}

static void start_with(uint32_t n, int32_t timeout_ms, bool is_armed)
{
	struct crew crew = {.daemon = &chaos.daemon,
			    .comm = "test",
			    .options = {.timeout_ms = timeout_ms}};

	crew_set(&crew);
	ranks_start(&ranks, n);
	if (is_armed)
		cr_assert(zero(int, rank_run(&ranks, n - 1, arm)));
	cr_assert(zero(int, ranks_run(&ranks, join)));
}

static void start(uint32_t n, int32_t timeout_ms)
{
	start_with(n, timeout_ms, false);
}

static const char *sentence(uint32_t rank)
{
	return ranks.notes[rank].sentence;
}

#define assert_says(rank, what)                                                \
	cr_assert(ne(ptr, strstr(sentence(rank), (what)), NULL), "\"%s\"",     \
		  sentence(rank))

static struct fsdp_comm *comm(void)
{
	return trainer()->comm;
}

/* --- calls that follow from a seed --------------------------------------- */

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
	/* count[s][d]: elements that rank s has for rank d. */
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

/* Is the reduction defined? As the header says. */
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

/* Mostly few, sometimes several rounds, sometimes none. */
static uint64_t draw_count(struct chance *chance, enum fsdp_dtype dtype)
{
	switch (draw(chance, 8)) {
	case 0:
		return 0;
	case 1:
		return draw(chance, (uint32_t)(9 * SLOT / 4)) /
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

/* The bits of scalar `i` of what rank `s` has for rank `d`. */
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

/* Of numbers that are widened to 64 bits. */
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

/* What scalar `i` for rank `d` is reduced to. */
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

/* A rank's memory in a call. */
struct memory {
	uint8_t *in[MAX_WORLD], *out[MAX_WORLD];
	struct fsdp_part in_parts[MAX_WORLD], out_parts[MAX_WORLD];
};

/* What the others have for rank `d` as one input for all: as for rank 0. */
static bool is_for_all(enum kind kind)
{
	return kind != SCATTER && kind != REDUCE_SCATTER && kind != ALL_TO_ALL;
}

static uint32_t target(const struct plan_of_call *call, uint32_t d)
{
	return is_for_all(call->kind) ? 0 : d;
}

static void memory_make(const struct plan_of_call *call, uint32_t rank,
			struct memory *ret)
{
	for (uint32_t k = 0; k < call->world; k++) {
		uint64_t n = call->count[k][rank];

		ret->in[k] = new_values(call, rank, target(call, k));
		ret->in_parts[k] =
			(struct fsdp_part){ret->in[k], call->count[rank][k]};
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
			memcpy(m->out[rank], m->in[0],
			       n * fsdp_dtype_size(c->dtype));
		return fsdp_broadcast(comm(), c->dtype, m->out[c->root], own,
				      c->root);
	case ALL_GATHER:
		if (c->is_in_place)
			memcpy(m->out[rank], m->in[0],
			       n * fsdp_dtype_size(c->dtype));
		return fsdp_all_gather(comm(), c->dtype,
				       c->is_in_place ? m->out[rank] : m->in[0],
				       n, m->out_parts);
	case GATHER:
		return fsdp_gather_to(comm(), c->dtype, m->in[0], n,
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
	void *in = m->in[0];

	if (c->is_in_place && c->kind != REDUCE_SCATTER) {
		in = m->out[0];
		memcpy(in, m->in[0], n * fsdp_dtype_size(c->dtype));
	}
	if (c->is_in_place && c->kind == REDUCE_SCATTER) {
		memcpy(m->out[0], m->in[rank], own * fsdp_dtype_size(c->dtype));
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

/* Is `out` what rank `s` has for this one, or reduced? */
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
	start(world, 0);
	cr_assert(zero(int, ranks_run(&ranks, make_calls)), "seed %llu",
		  (unsigned long long)seed);
}

Test(collective, one_rank_gets_what_is_computed_plainly)
{
	expect_right(1);
}

Test(collective, two_ranks_get_what_is_computed_plainly)
{
	expect_right(2);
}

Test(collective, three_ranks_get_what_is_computed_plainly)
{
	expect_right(3);
}

Test(collective, four_ranks_get_what_is_computed_plainly)
{
	expect_right(4);
}

/* --- calls that do not fit ----------------------------------------------- */

static float numbers[64], results[4 * 64];

static int reduce_64(void)
{
	return rank_note(fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, numbers,
					 results, 64));
}

static int differ_in_kind(void)
{
	if (rank_self() == 1)
		return rank_note(
			fsdp_broadcast(comm(), FSDP_F32, numbers, 64, 0));
	return reduce_64();
}

static int differ_in_dtype(void)
{
	return rank_note(fsdp_all_reduce(comm(),
					 rank_self() == 1 ? FSDP_I32 : FSDP_F32,
					 FSDP_SUM, numbers, results, 64));
}

static int differ_in_reduction(void)
{
	return rank_note(fsdp_all_reduce(comm(), FSDP_F32,
					 rank_self() == 1 ? FSDP_MAX : FSDP_SUM,
					 numbers, results, 64));
}

static int differ_in_root(void)
{
	return rank_note(fsdp_broadcast(comm(), FSDP_F32, numbers, 64,
					rank_self() == 1 ? 1 : 0));
}

static int differ_in_size(void)
{
	return rank_note(fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, numbers,
					 results, rank_self() == 1 ? 63 : 64));
}

/* What rank 1 has for each is as large as what the others have for all. */
static int differ_in_size_thrice(void)
{
	static float large[3 * 16384];

	return rank_note(fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, large,
					 large,
					 rank_self() == 1 ? 3 * 16384 : 16384));
}

/* Neither reads anything of the other. */
static int gather_or_broadcast(void)
{
	if (rank_self() == 0)
		return rank_note(
			fsdp_broadcast(comm(), FSDP_F32, numbers, 1, 0));
	return rank_note(fsdp_gather_to(comm(), FSDP_F32, numbers, 1, NULL, 0));
}

static const struct difference {
	actor_fn *fn;
	const char *says;
} differences[] = {
	{differ_in_kind, "calls a broadcast (f32, rank 0)"},
	{differ_in_dtype, "calls an all-reduce (sum of i32)"},
	{differ_in_reduction, "calls an all-reduce (max of f32)"},
	{differ_in_root, "calls a broadcast (f32, rank 1)"},
	{differ_in_size, "gives rank"},
	{differ_in_size_thrice, "calls a large all-reduce (sum of f32)"},
	{gather_or_broadcast, "calls a gather (f32, rank 0)"},
};

Test(collective, all_are_told_which_calls_differ)
{
	for (size_t i = 0; i < sizeof(differences) / sizeof(*differences);
	     i++) {
		start(3, 0);
		ranks_begin(&ranks, differences[i].fn);
		ranks_end(&ranks);
		for (uint32_t rank = 0; rank < 3; rank++) {
			cr_assert(
				eq(int, ranks.notes[rank].code, -ECONNABORTED),
				"%zu: rank %u", i, rank);
			assert_says(rank, differences[i].says);
		}
		cr_assert(
			eq(int, rank_run(&ranks, 0, reduce_64), -ECONNABORTED));
		ranks_stop(&ranks);
	}
}

static int refuse_badly(void)
{
	struct fsdp_part parts[2] = {{numbers, 1}, {NULL, 1}};
	char *odd = (char *)results + 1;

	must(fsdp_broadcast(NULL, FSDP_F32, numbers, 1, 0) == -EINVAL);
	must(fsdp_broadcast(comm(), 99, numbers, 1, 0) == -EINVAL);
	must(fsdp_broadcast(comm(), FSDP_F32, numbers, 1, 2) == -EINVAL);
	must(fsdp_broadcast(comm(), FSDP_F32, NULL, 1, 0) == -EINVAL);
	must(fsdp_broadcast(comm(), FSDP_F32, numbers, UINT64_MAX / 4 + 2, 0) ==
	     -EINVAL);
	must(fsdp_all_reduce(comm(), FSDP_F32, 99, numbers, results, 1) ==
	     -EINVAL);
	must(fsdp_all_reduce(comm(), FSDP_F32, FSDP_BAND, numbers, results,
			     1) == -EINVAL);
	must(fsdp_all_reduce(comm(), FSDP_F8_E4M3, FSDP_SUM, numbers, results,
			     1) == -EINVAL);
	must(fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, numbers, odd, 1) ==
	     -EINVAL);
	must(fsdp_all_gather(comm(), FSDP_F32, numbers, 1, parts) == -EINVAL);
	must(fsdp_all_to_all(comm(), FSDP_F32, NULL, parts) == -EINVAL);
	/* Nothing has happened. */
	return reduce_64();
}

Test(collective, a_bad_argument_is_refused_and_changes_nothing)
{
	start(2, 0);
	cr_assert(zero(int, ranks_run(&ranks, refuse_badly)));
}

/* --- those that do not come ---------------------------------------------- */

Test(collective, who_waits_is_told_of_a_death_by_name)
{
	start(3, 0);
	for (uint32_t i = 0; i < 2; i++)
		actor_begin(&ranks.actors[i], reduce_64);
	actor_kill(&ranks.actors[2]);
	for (uint32_t i = 0; i < 2; i++) {
		cr_assert(eq(int, actor_end(&ranks.actors[i]), -ECONNABORTED));
		assert_says(i, "rank 2 (pid ");
		assert_says(i, "died");
	}
}

/* Large ones, of several rounds, by all ranks. */
static int make_large_calls_until_told(void)
{
	static char in[3 * 1024 * 1024], out[sizeof(in)];
	uint64_t n = sizeof(in) / sizeof(float);
	int r;

	do
		r = fsdp_all_reduce(comm(), FSDP_F32, FSDP_SUM, in, out, n);
	while (r == 0);
	return rank_note(r);
}

Test(collective, a_rank_that_dies_at_any_point_leaves_nobody_waiting)
{
	static const char *const points[] = {"exchange.filled", "box.put",
					     "exchange.copied", "box.taken",
					     "bell.counted",    "bell.bumped"};

	if (!chaos_has_points())
		cr_skip_test("built without points");
	for (size_t i = 0; i < 2 * sizeof(points) / sizeof(*points); i++) {
		const char *point = points[i / 2];

		start_with(3, 0, true);
		plan_death(plan, point, i % 2 ? 7 : 1);
		for (uint32_t rank = 0; rank < 3; rank++)
			actor_begin(&ranks.actors[rank],
				    make_large_calls_until_told);
		cr_assert(eq(int, actor_end(&ranks.actors[2]), -ECHILD));
		actor_kill(&ranks.actors[2]);
		for (uint32_t rank = 0; rank < 2; rank++) {
			cr_assert(eq(int, actor_end(&ranks.actors[rank]),
				     -ECONNABORTED),
				  "%s", point);
			assert_says(rank, "rank 2 (pid ");
		}
		ranks_stop(&ranks);
	}
}

Test(collective, a_late_rank_is_named_to_all)
{
	start(2, 1000);
	cr_assert(eq(int, rank_run(&ranks, 0, reduce_64), -ECONNABORTED));
	assert_says(0, "rank 1 (pid ");
	assert_says(0, ") has not come to an all-reduce within 1000 ms");
	cr_assert(eq(int, rank_run(&ranks, 1, reduce_64), -ECONNABORTED));
	assert_says(1, ") has not come to an all-reduce within 1000 ms");
}

static int leave(void)
{
	return fsdp_comm_leave(trainer()->comm);
}

Test(collective, who_waits_is_told_that_another_has_left)
{
	start(2, 0);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[0], reduce_64);
	cr_assert(zero(int, rank_run(&ranks, 1, leave)));
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	assert_says(0, ") has left");
}

Test(collective, who_waits_learns_that_the_broker_was_restarted)
{
	start(2, 0);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[0], reduce_64);
	daemon_kill_broker(&chaos.daemon);
	cr_assert(eq(int, actor_end(&ranks.actors[0]), -ECONNABORTED));
	cr_assert(eq(int, rank_run(&ranks, 1, reduce_64), -ECONNABORTED));
}

static int is_tired;

static int ask_whether_tired(void *unused)
{
	(void)unused;
	return is_tired;
}

static struct fsdp_comm *join_other(struct fsdp_client *client)
{
	struct fsdp_comm *other;

	must(fsdp_comm_join(client, "other", 2, rank_self(), NULL, &other) ==
	     0);
	return other;
}

static int reduce_other(struct fsdp_comm *other)
{
	return rank_note(fsdp_all_reduce(other, FSDP_F32, FSDP_SUM, numbers,
					 results, 64));
}

/* By a connection that does not want to wait. */
static int reduce_interrupted(void)
{
	const struct fsdp_connect_options options = {
		.path = chaos.daemon.socket, .interrupted = ask_whether_tired};
	struct fsdp_client *client;
	struct fsdp_comm *other;
	int r;

	must(fsdp_connect(&options, &client) == 0);
	other = join_other(client);
	is_tired = 1;
	r = reduce_other(other);
	must(fsdp_close(client) == 0);
	return r;
}

/* After the other has given up. */
static int reduce_too_late(void)
{
	struct fsdp_comm *other = join_other(trainer()->client);

	while (fsdp_barrier(other, 0) == -ETIMEDOUT)
		sched_yield();
	return reduce_other(other);
}

static int interrupt_one(void)
{
	return rank_self() == 0 ? reduce_interrupted() : reduce_too_late();
}

Test(collective, an_interrupt_ends_the_run_with_a_sentence_for_all)
{
	start(2, 0);
	ranks_begin(&ranks, interrupt_one);
	ranks_end(&ranks);
	cr_assert(eq(int, ranks.notes[0].code, -EINTR));
	cr_assert(eq(int, ranks.notes[1].code, -ECONNABORTED));
	assert_says(1, "rank 0 (pid ");
	assert_says(1, ") was interrupted in an all-reduce");
}

/* --- a hostile rank ------------------------------------------------------ */

static char *map_of_board(size_t *ret_size)
{
	FILE *maps = fopen("/proc/self/maps", "re");
	unsigned long begin, end;
	char line[512], *map = NULL;

	while (maps && fgets(line, sizeof(line), maps)) {
		if (strstr(line, "fsdp-board") &&
		    sscanf(line, "%lx-%lx", &begin, &end) == 2) {
			map = (char *)begin;
			*ret_size = end - begin;
		}
	}
	if (maps)
		(void)fclose(maps);
	return map;
}

/* As long as the other one is alive. */
static int scribble(void)
{
	struct chance chance = {seed};
	size_t size = 0;
	char *map = map_of_board(&size);

	if (!map)
		return -EIO;
	for (int i = 0; i < 200000; i++) {
		uint64_t *word =
			(uint64_t *)map + draw(&chance, (uint32_t)(size / 8));

		*(volatile uint64_t *)word =
			mix_bits(seed + (uint64_t)i) >> draw(&chance, 64);
	}
	memset(map, 0xa5, size);
	return 0;
}

static int send_large_until_told(void)
{
	static char out[700 * 1024], in[sizeof(out)];
	struct fsdp_transfer *sent, *received;
	int r;

	do {
		r = fsdp_send(comm(), FSDP_U8, out, sizeof(out), 0, 1, &sent);
		if (r == 0)
			r = fsdp_receive(comm(), FSDP_U8, in, sizeof(in), 0, 1,
					 &received);
		if (r == 0)
			r = fsdp_transfer_wait(received, -1, NULL);
		if (r == 0)
			r = fsdp_transfer_wait(sent, -1, NULL);
	} while (r == 0);
	return rank_note(r);
}

Test(collective, who_scribbles_on_mail_harms_its_own_run_only)
{
	start(2, 1000);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[1], send_large_until_told);
	cr_assert(zero(int, rank_run(&ranks, 0, scribble)));
	cr_assert(eq(int, actor_end(&ranks.actors[1]), -ECONNABORTED));
	ranks_stop(&ranks);
	start(2, 0);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
}

Test(collective, who_scribbles_on_the_board_harms_its_own_run_only)
{
	struct fsdp_client *client = chaos_connect(&chaos);

	start(2, 1000);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	actor_begin(&ranks.actors[1], make_large_calls_until_told);
	cr_assert(zero(int, rank_run(&ranks, 0, scribble)));
	cr_assert(eq(int, actor_end(&ranks.actors[1]), -ECONNABORTED));
	cr_assert(zero(int, fsdp_ping(client)));
	ranks_stop(&ranks);
	start(2, 0);
	cr_assert(zero(int, ranks_run(&ranks, reduce_64)));
	fsdp_close(client);
}
