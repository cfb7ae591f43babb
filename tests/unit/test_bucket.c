/* Bucket plans: the reference's cases, and what we do instead of its quirks. */
#include "broker/collective/bucket.h"
#include "proto/error.h"

#include <criterion/criterion.h>
#include <criterion/new/assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define MIB    1048576
#define REJECT 255 /* a key: the filter rejects the item */
#define N_MAX  8

/* One character for each item: the number of its bucket, or '-'. */
static const char *plan(const uint64_t *sizes, const int *keys, uint32_t n,
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
	cr_assert(zero(int, bucket_plan(items, n, options, buckets, &n_buckets,
					NULL)));
	for (uint32_t i = 0; i < n; i++)
		text[i] = buckets[i] == BUCKET_NONE ? '-'
						    : (char)('0' + buckets[i]);
	text[n] = '\0';
	return text;
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

Test(bucket, plans_are_those_of_the_reference_or_ours)
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

/* a0 -> a1 -> a3 */
static bool depends(uint32_t later, uint32_t earlier, void *data)
{
	(void)data;
	return (earlier == 0 && (later == 1 || later == 3)) ||
	       (earlier == 1 && later == 3);
}

/* case 15 */
Test(bucket, dependents_begin_the_next_bucket_and_are_not_dropped)
{
	static const uint64_t sizes[] = {1, 1, 1, 1};
	static const int keys[4];
	struct bucket_options options = {.is_faithful = true,
					 .depends = depends};

	cr_assert(eq(str, (char *)plan(sizes, keys, 4, &options),
		     (char *)"0-0-"));
	options.is_faithful = false;
	cr_assert(eq(str, (char *)plan(sizes, keys, 4, &options),
		     (char *)"0112"));
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

	/* 1, then 2 for all that follow; a new run begins at 1 again */
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

Test(bucket, caps_that_are_none_are_refused)
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
