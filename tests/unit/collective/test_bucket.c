/* Tests bucket plans: the reference's cases, and the behaviour that replaces
 * the reference's quirks. */
#include "collective/bucket.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB    1048576
#define REJECT 255 /* a key: the filter rejects the item */
#define N_MAX  8

/* Returns a string with one character for each item: the number of its bucket,
 * or '-' if it is in no bucket. */
static const char *plan_needing(const uint64_t *sizes, const int *keys,
				const uint32_t *n_before, uint32_t n,
				const struct bucket_options *options)
{
	static char text[N_MAX + 1];
	struct bucket_item items[N_MAX];
	uint32_t buckets[N_MAX], n_buckets;

	for (uint32_t i = 0; i < n; i++)
		items[i] =
			(struct bucket_item){.key = (uint64_t)keys[i],
					     .size = sizes[i],
					     .is_rejected = keys[i] == REJECT};
	if (n_before) {
		for (uint32_t i = 0; i < n; i++)
			items[i].n_before = n_before[i];
	}
	cr_assert(zero(int, bucket_plan(items, n, options, buckets, &n_buckets,
					NULL)));
	for (uint32_t i = 0; i < n; i++)
		text[i] = buckets[i] == BUCKET_NONE ? '-'
						    : (char)('0' + buckets[i]);
	text[n] = '\0';
	return text;
}

static const char *plan(const uint64_t *sizes, const int *keys, uint32_t n,
			const struct bucket_options *options)
{
	return plan_needing(sizes, keys, NULL, n, options);
}

struct row {
	const char *what;
	double cap_mb;
	uint32_t n;
	uint64_t sizes[N_MAX];
	int keys[N_MAX];
	const char *faithful, *ours;
};

static const struct row rows[] = {
	{"case 8",
	 1,
	 5,
	 {MIB / 2, MIB / 2, MIB / 2, MIB / 2, MIB / 2},
	 {0},
	 "0011-",
	 "00112"},
	{"case 10", 1, 4, {MIB - 1, 1, 1, 1}, {0}, "0011", "0011"},
	{"case 11", 1, 3, {3 * MIB, MIB / 4, MIB / 4}, {0}, "-00", "011"},
	{"case 11, in the middle",
	 1,
	 5,
	 {MIB / 4, MIB / 4, 3 * MIB, MIB / 4, MIB / 4},
	 {0},
	 "00-11",
	 "00122"},
	{"case 13", 0, 4, {1, 1, 0, 0}, {0}, "--00", "0122"},
	{"case 13, truncated", 0.001, 4, {524, 524, 1, 1}, {0}, "0011", "0011"},
	{"case 14", 1, 5, {1, 1, 1, 1, 1}, {1, 2, 2, 1, 1}, "-0011", "01122"},
	{"case 14, A B A", 1, 3, {1, 1, 1}, {1, 2, 1}, "---", "012"},
	{"case 14, B rejected", 1, 3, {1, 1, 1}, {1, REJECT, 1}, "0-0", "0-0"},
	{"case 18, a run of one", 1, 1, {1}, {0}, "-", "0"},
	{"case 18, nothing", 1, 0, {0}, {0}, "", ""},
};

Test(bucket, plans_in_both_modes_are_those_of_the_table)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		const struct row *row = &rows[i];
		struct bucket_options options = {.caps_mb = &row->cap_mb,
						 .n_caps = 1,
						 .is_faithful = true};

		cr_assert(eq(str,
			     (char *)plan(row->sizes, row->keys, row->n,
					  &options),
			     (char *)row->faithful),
			  "%s, faithful", row->what);
		options.is_faithful = false;
		cr_assert(eq(str,
			     (char *)plan(row->sizes, row->keys, row->n,
					  &options),
			     (char *)row->ours),
			  "%s, ours", row->what);
	}
}

/* case 15: a0 -> a1 -> a3 */
Test(bucket, dependents_start_the_next_bucket_unless_the_plan_is_faithful)
{
	static const uint64_t sizes[] = {1, 1, 1, 1};
	static const int keys[4];
	static const uint32_t n_before[] = {0, 1, 0, 2};
	struct bucket_options options = {.is_faithful = true};

	cr_assert(eq(str,
		     (char *)plan_needing(sizes, keys, n_before, 4, &options),
		     (char *)"0-0-"));
	options.is_faithful = false;
	cr_assert(eq(str,
		     (char *)plan_needing(sizes, keys, n_before, 4, &options),
		     (char *)"0112"));
}

/* A plan needs one number for each item. The reference compares all items with
 * each other, as this test does. */
enum { N_RANDOM = 24 };

struct descendants {
	bool is_one[N_RANDOM][N_RANDOM]; /* [item][of] */
};

static uint32_t pick(uint32_t *state, uint32_t n)
{
	*state = *state * 1664525 + 1013904223;
	return (*state >> 8) % n;
}

static void make_random(struct bucket_item *items, struct descendants *ret,
			uint32_t *state)
{
	*ret = (struct descendants){0};
	for (uint32_t i = 0; i < N_RANDOM; i++) {
		items[i] = (struct bucket_item){.key = pick(state, 8) == 0,
						.size = pick(state, 4),
						.is_rejected =
							pick(state, 5) == 0};
		for (uint32_t k = 0; k < i; k++) {
			if (pick(state, 12) != 0)
				continue;
			ret->is_one[i][k] = true;
			for (uint32_t of = 0; of < k; of++)
				ret->is_one[i][of] |= ret->is_one[k][of];
		}
		for (uint32_t k = 0; k < i; k++) {
			if (ret->is_one[i][k] && !items[k].is_rejected)
				items[i].n_before = k + 1;
		}
	}
}

static bool needs_one(const struct descendants *descendants, uint32_t item,
		      const uint32_t *bucket, uint32_t n)
{
	for (uint32_t i = 0; i < n; i++) {
		if (descendants->is_one[item][bucket[i]])
			return true;
	}
	return false;
}

/* Make buckets as the documentation describes it, with one cap for all. */
static void walk(const struct bucket_item *items,
		 const struct descendants *descendants, bool is_faithful,
		 uint64_t cap, uint32_t *ret)
{
	uint32_t open[N_RANDOM], n_open = 0, n_buckets = 0;
	uint64_t size = 0;

	for (uint32_t i = 0, last = UINT32_MAX; i <= N_RANDOM; i++) {
		bool is_end = i == N_RANDOM, is_dependent = false;

		if (!is_end)
			ret[i] = BUCKET_NONE;
		if (!is_end && items[i].is_rejected)
			continue;
		if (!is_end && items[i].key == last)
			is_dependent = needs_one(descendants, i, open, n_open);
		if (is_dependent && is_faithful)
			continue;
		if (is_end || items[i].key != last || is_dependent ||
		    (n_open > 0 && size + items[i].size > cap)) {
			for (uint32_t k = 0;
			     k < n_open && n_open > (uint32_t)is_faithful; k++)
				ret[open[k]] = n_buckets;
			n_buckets += n_open > (uint32_t)is_faithful;
			n_open = 0;
			size = 0;
		}
		if (is_end)
			break;
		last = (uint32_t)items[i].key;
		open[n_open++] = i;
		size += items[i].size;
	}
}

Test(bucket, random_plans_respect_transitive_dependencies)
{
	struct bucket_item items[N_RANDOM];
	struct descendants descendants;
	uint32_t expected[N_RANDOM], buckets[N_RANDOM], n, state = 1;

	for (uint32_t i = 0; i < 20000; i++) {
		double cap_mb = (1 + i % 12) / (double)MIB;
		struct bucket_options options = {
			.caps_mb = &cap_mb, .n_caps = 1, .is_faithful = i % 2};

		make_random(items, &descendants, &state);
		walk(items, &descendants, options.is_faithful, 1 + i % 12,
		     expected);
		cr_assert(zero(int, bucket_plan(items, N_RANDOM, &options,
						buckets, &n, NULL)));
		cr_assert(zero(int, memcmp(expected, buckets, sizeof(buckets))),
			  "%u", i);
	}
}

/* case 17 */
Test(bucket, the_default_cap_holds_a_thousand_gathers_of_two_mib)
{
	enum { N = 1001 };
	struct bucket_item *items = calloc(N, sizeof(*items));
	uint32_t *buckets = calloc(N, sizeof(*buckets)), n_buckets;
	struct bucket_options options = {.is_faithful = true};

	for (int i = 0; i < N; i++)
		items[i].size = 262144 * 8;
	cr_assert(zero(int, bucket_plan(items, N, &options, buckets, &n_buckets,
					NULL)));
	cr_assert(eq(u32, n_buckets, 1));
	cr_assert(eq(u32, buckets[999], 0));
	cr_assert(eq(u32, buckets[1000], BUCKET_NONE));
	options.is_faithful = false;
	cr_assert(zero(int, bucket_plan(items, N, &options, buckets, &n_buckets,
					NULL)));
	cr_assert(eq(u32, n_buckets, 2));
	cr_assert(eq(u32, buckets[1000], 1));
	free(items);
	free(buckets);
}

Test(bucket, each_bucket_of_a_run_has_its_own_cap)
{
	static const double caps[] = {1, 2};
	static const uint64_t sizes[] = {MIB, MIB, MIB, MIB, MIB};
	static const int keys[] = {0, 0, 0, 0, 1};
	struct bucket_options options = {.caps_mb = caps, .n_caps = 2};

	/* The first bucket has cap 1, all following ones have cap 2. A new run
	 * begins with cap 1 again. */
	cr_assert(eq(str, (char *)plan(sizes, keys, 5, &options),
		     (char *)"01123"));
	options.is_faithful = true;
	cr_assert(eq(str, (char *)plan(sizes, keys, 5, &options),
		     (char *)"-----"));
}

Test(bucket, sizes_that_add_up_over_64_bits_do_not_wrap)
{
	static const double cap = 1e300;
	static const uint64_t sizes[] = {UINT64_MAX, 2, 3};
	static const int keys[3];
	struct bucket_options options = {.caps_mb = &cap, .n_caps = 1};

	cr_assert(eq(u64, bucket_cap_bytes(cap), UINT64_MAX));
	cr_assert(
		eq(str, (char *)plan(sizes, keys, 3, &options), (char *)"011"));
}

Test(bucket, invalid_caps_are_refused)
{
	const double caps[] = {NAN, -1, INFINITY, -0.001};
	struct bucket_item item = {0};
	uint32_t bucket = 7, n = 7;

	for (size_t i = 0; i < sizeof(caps) / sizeof(*caps); i++) {
		struct bucket_options options = {.caps_mb = &caps[i],
						 .n_caps = 1};
		struct error err = ERROR_NULL;

		cr_assert(eq(int, bucket_check_cap(caps[i], &err), -EINVAL));
		cr_assert(ne(ptr, strstr(err.msg, "give a"), NULL));
		cr_assert(eq(int,
			     bucket_plan(&item, 1, &options, &bucket, &n, NULL),
			     -EINVAL));
		cr_assert(eq(u32, bucket, 7));
		cr_assert(eq(u32, n, 7));
	}
	cr_assert(zero(int, bucket_check_cap(0, NULL)));
}
