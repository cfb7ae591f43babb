/*
 * Helpers for the tests of kernels: random launches, and their expected
 * results, element by element, by the definitions in cuda/kernels.h.
 */
#pragma once
#include "cuda/kernels.h"
#include "tests/unit/collective/host/host_fixture.h"

#define CASE_MAX_ENTRIES 1024

/* A launch on memories of the host. The runner copies them to the place where
 * its kernels run. */
struct kernels_case {
	enum kernels_kind kind;
	struct kernels_entry entries[CASE_MAX_ENTRIES];
	uint32_t n_entries;
	uint32_t first, n; /* entries that are launched */
	double factor;
	bool is_added;
	uint8_t *from, *to; /* from malloc() */
	uint64_t from_size, to_size;
};

static inline void *case_alloc(uint64_t size)
{
	void *memory = aligned_alloc(64, (size + 64) / 64 * 64);

	if (!memory)
		abort();
	return memory;
}

static inline void case_deinit(struct kernels_case *launch)
{
	free(launch->from);
	free(launch->to);
}

/* --- what must come out -------------------------------------------------- */

/* Dtypes that are not numbers are only copied, and are not passed here. */
static inline union number case_cast(uint32_t to, union number x)
{
	if (is_float(to))
		x.f = round_float(to, x.f);
	return x;
}

static inline union number case_divide(uint32_t dtype, union number x,
				       double by)
{
	if (dtype == DTYPE_F64)
		x.f = x.f / by;
	else if (is_float(dtype))
		x.f = (double)((float)x.f / (float)by);
	else if (is_signed(dtype))
		x.i = (uint64_t)((int64_t)x.i / (int64_t)by);
	else
		x.i = x.i / (uint64_t)by;
	return x;
}

static inline union number case_multiply(uint32_t dtype, union number x,
					 double by)
{
	if (dtype == DTYPE_F64)
		x.f = x.f * by;
	else if (is_float(dtype))
		x.f = (double)((float)x.f * (float)by);
	return x;
}

static inline union number case_add(uint32_t dtype, union number a,
				    union number b)
{
	if (dtype == DTYPE_F64)
		a.f = a.f + b.f;
	else if (is_float(dtype))
		a.f = (double)((float)a.f + (float)b.f);
	else
		a.i = a.i + b.i;
	return a;
}

static inline void case_expect_one(const struct kernels_case *launch,
				   const struct kernels_entry *entry,
				   const uint8_t *from, uint8_t *to)
{
	uint32_t from_dtype = entry->from_dtype, dtype = entry->to_dtype;
	union number x;

	if (from_dtype == dtype && launch->kind <= KERNELS_COPY_OUT) {
		memcpy(to, from, dtype_size(dtype));
		return;
	}
	x = number_load(from_dtype, from);
	if (launch->kind == KERNELS_GRAD_OUT)
		x = case_divide(from_dtype, x, launch->factor);
	x = case_cast(dtype, x);
	if (launch->kind == KERNELS_CHUNK_CAT)
		x = case_cast(dtype, case_multiply(dtype, x, launch->factor));
	if (launch->is_added)
		x = case_cast(dtype,
			      case_add(dtype, number_load(dtype, to), x));
	number_store(dtype, to, x);
}

/* Returns the bytes from the first chunk to element p of the whole. */
static inline uint64_t case_find(const struct kernels_entry *entry, uint64_t p,
				 uint32_t size)
{
	uint64_t row = p / entry->part_numel / entry->n_ranks;
	uint64_t rank = p / entry->part_numel % entry->n_ranks;
	uint64_t at = row * entry->part_numel + p % entry->part_numel;

	return rank * entry->stride + at * size;
}

static inline void case_expect_entry(const struct kernels_case *launch,
				     const struct kernels_entry *entry,
				     uint8_t *want)
{
	uint32_t from_size = dtype_size(entry->from_dtype);
	uint32_t to_size = dtype_size(entry->to_dtype);

	for (uint64_t p = 0; p < entry->padded_numel; p++) {
		uint64_t from = p * from_size, to = p * to_size;

		if (launch->kind == KERNELS_COPY_OUT && p < entry->numel)
			from = case_find(entry, p, from_size);
		if (launch->kind == KERNELS_CHUNK_CAT)
			to = case_find(entry, p, to_size);
		if (p < entry->numel)
			case_expect_one(launch, entry,
					launch->from + entry->from + from,
					want + entry->to + to);
		else
			memset(want + entry->to + to, 0, to_size);
	}
}

/* Returns the expected contents of the memory that is written; from
 * malloc(). */
static inline uint8_t *case_expect(const struct kernels_case *launch)
{
	uint8_t *want = case_alloc(launch->to_size);

	memcpy(want, launch->to, launch->to_size);
	for (uint32_t i = 0; i < launch->n; i++)
		case_expect_entry(launch, &launch->entries[launch->first + i],
				  want);
	return want;
}

/* --- random ones --------------------------------------------------------- */

static const uint32_t case_floats[] = {DTYPE_F16, DTYPE_BF16, DTYPE_F32,
				       DTYPE_F64};
static const uint32_t case_integers[] = {DTYPE_I8,  DTYPE_I16, DTYPE_I32,
					 DTYPE_I64, DTYPE_U8,  DTYPE_U16,
					 DTYPE_U32, DTYPE_U64};

static inline void case_throw_dtypes(struct dice *dice, enum kernels_kind kind,
				     struct kernels_entry *entry)
{
	uint32_t dtype = case_integers[dice_throw(dice, 8)];
	uint32_t wide = is_signed(dtype) ? DTYPE_I64 : DTYPE_U64;

	entry->from_dtype = case_floats[dice_throw(dice, 4)];
	entry->to_dtype = case_floats[dice_throw(dice, 4)];
	if (kind <= KERNELS_COPY_OUT && dice_throw(dice, 2)) {
		entry->from_dtype = 1 + dice_throw(dice, DTYPE_MAX);
		entry->to_dtype = entry->from_dtype;
	} else if (kind > KERNELS_COPY_OUT && dice_throw(dice, 3) == 0) {
		entry->from_dtype = dice_throw(dice, 3) ? dtype : wide;
		entry->to_dtype = dice_throw(dice, 3) ? wide : dtype;
		if (entry->from_dtype != wide && entry->to_dtype != wide)
			entry->to_dtype = entry->from_dtype;
	}
}

static inline void case_throw_numel(struct dice *dice, enum kernels_kind kind,
				    struct kernels_entry *entry)
{
	static const uint32_t parts[] = {0,  1,   2,    3,    7,    8,
					 16, 100, 1000, 1024, 5003, 20000};
	uint64_t all;

	entry->n_ranks = 1 + dice_throw(dice, 9);
	entry->n_rows = dice_throw(dice, 3) ? 1 : 1 + dice_throw(dice, 20);
	entry->part_numel = parts[dice_throw(dice, 12)];
	if (entry->n_rows > 1)
		entry->part_numel %= 200;
	all = entry->n_ranks * entry->n_rows * entry->part_numel;
	entry->numel = all;
	if (entry->n_rows == 1 && dice_throw(dice, 2))
		entry->numel = dice_throw(dice, (uint32_t)all + 1);
	entry->padded_numel = all;
	if (kind != KERNELS_CHUNK_CAT)
		entry->padded_numel =
			entry->numel +
			(dice_throw(dice, 2) ? dice_throw(dice, 40) : 0);
}

/* Returns the next place for elements of that size in a memory, at a multiple
 * of 64 or at any offset. */
static inline uint64_t case_throw_place(struct dice *dice, uint64_t end,
					uint32_t size)
{
	uint64_t place = (end + 63) / 64 * 64;

	return dice_throw(dice, 3) ? place
				   : place + dice_throw(dice, 40) * size;
}

/* Draw an entry. `from_end` and `to_end` are advanced past it. */
static inline void case_throw_entry(struct dice *dice, enum kernels_kind kind,
				    struct kernels_entry *entry,
				    uint64_t *from_end, uint64_t *to_end)
{
	uint32_t from_size, to_size;
	uint64_t chunk;

	case_throw_dtypes(dice, kind, entry);
	case_throw_numel(dice, kind, entry);
	from_size = dtype_size(entry->from_dtype);
	to_size = dtype_size(entry->to_dtype);
	entry->from = case_throw_place(dice, *from_end, from_size);
	entry->to = case_throw_place(dice, *to_end, to_size);
	chunk = entry->n_rows * entry->part_numel;
	chunk *= kind == KERNELS_COPY_OUT ? from_size : to_size;
	entry->stride = chunk;
	if (dice_throw(dice, 3) == 0)
		entry->stride +=
			dice_throw(dice, 3) *
			(kind == KERNELS_COPY_OUT ? from_size : to_size);
	else if (dice_throw(dice, 2))
		entry->stride = (chunk + 63) / 64 * 64;
	*from_end = entry->from + entry->padded_numel * from_size;
	*to_end = entry->to + entry->padded_numel * to_size;
	if (kind == KERNELS_COPY_OUT)
		*from_end = entry->from + entry->n_ranks * entry->stride;
	if (kind == KERNELS_CHUNK_CAT)
		*to_end = entry->to + entry->n_ranks * entry->stride;
}

static inline bool case_has_integers(const struct kernels_case *launch)
{
	for (uint32_t i = 0; i < launch->n_entries; i++) {
		if (!is_float(launch->entries[i].from_dtype))
			return true;
	}
	return false;
}

static inline double case_throw_factor(struct dice *dice,
				       const struct kernels_case *launch)
{
	static const double factors[] = {1, 2, 3, 7, 64, 1000, 0.5, 1.0 / 3};
	bool has_integers = case_has_integers(launch);

	if (launch->kind <= KERNELS_COPY_OUT ||
	    (launch->kind == KERNELS_CHUNK_CAT && has_integers))
		return 1;
	return factors[dice_throw(dice, has_integers ? 6 : 8)];
}

/* Write numbers that need rounding, or any bits: NaN, infinities,
 * subnormals. */
static inline void case_fill(struct dice *dice, uint32_t dtype, uint8_t *to,
			     uint64_t n)
{
	if (dice_throw(dice, 3) && is_reducible(dtype)) {
		memory_fill(dice, dtype, to, n);
		return;
	}
	for (uint64_t i = 0; i < n * dtype_size(dtype); i++)
		to[i] = (uint8_t)dice_next(dice);
}

static inline void case_fill_from(struct dice *dice,
				  const struct kernels_case *launch,
				  const struct kernels_entry *entry)
{
	uint64_t chunk = entry->n_rows * entry->part_numel;

	if (launch->kind != KERNELS_COPY_OUT) {
		case_fill(dice, entry->from_dtype, launch->from + entry->from,
			  entry->numel);
		return;
	}
	for (uint32_t r = 0; r < entry->n_ranks; r++)
		case_fill(dice, entry->from_dtype,
			  launch->from + entry->from + r * entry->stride,
			  chunk);
}

/* Allocate and fill memories for the entries of the launch. */
static inline void case_make_memory(struct dice *dice,
				    struct kernels_case *launch,
				    uint64_t from_size, uint64_t to_size)
{
	launch->from_size = from_size + 64;
	launch->to_size = to_size + 64;
	launch->from = case_alloc(launch->from_size);
	launch->to = case_alloc(launch->to_size);
	memset(launch->from, CANARY, launch->from_size);
	memset(launch->to, CANARY, launch->to_size);
	for (uint32_t i = 0; i < launch->n_entries; i++) {
		const struct kernels_entry *entry = &launch->entries[i];

		case_fill_from(dice, launch, entry);
		if (launch->is_added)
			case_fill(dice, entry->to_dtype, launch->to + entry->to,
				  entry->padded_numel);
	}
}

static inline void case_throw(struct dice *dice, enum kernels_kind kind,
			      uint32_t max_entries, struct kernels_case *launch)
{
	uint64_t from_end = 0, to_end = 0;

	*launch = (struct kernels_case){
		.kind = kind,
		.n_entries = 1 + dice_throw(dice, max_entries),
	};
	for (uint32_t i = 0; i < launch->n_entries; i++)
		case_throw_entry(dice, kind, &launch->entries[i], &from_end,
				 &to_end);
	launch->first = dice_throw(dice, launch->n_entries);
	launch->n = dice_throw(dice, launch->n_entries - launch->first + 1);
	if (dice_throw(dice, 2)) {
		launch->first = 0;
		launch->n = launch->n_entries;
	}
	launch->factor = case_throw_factor(dice, launch);
	launch->is_added = kind == KERNELS_GRAD_OUT && dice_throw(dice, 2);
	case_make_memory(dice, launch, from_end, to_end);
}

/* Returns the first offset where two memories differ, or `size`. */
static inline uint64_t case_compare(const uint8_t *a, const uint8_t *b,
				    uint64_t size)
{
	uint64_t i = 0;

	while (i < size && a[i] == b[i])
		i++;
	return i;
}

/* Describe the entry to which byte `at` belongs, for an error's sentence. */
static inline const char *case_describe(const struct kernels_case *launch,
					uint64_t at)
{
	static char text[256];
	uint32_t i = 0;

	while (i + 1 < launch->n_entries && launch->entries[i + 1].to <= at)
		i++;
	const struct kernels_entry *entry = &launch->entries[i];

	(void)snprintf(text, sizeof(text),
		       "kind %d, byte %llu, entry %u (%s to %s, %u ranks, %llu "
		       "rows of %llu, numel %llu of %llu), launched %u from %u "
		       "on, factor %g%s",
		       (int)launch->kind, (unsigned long long)(at - entry->to),
		       i, dtype_name(entry->from_dtype),
		       dtype_name(entry->to_dtype), entry->n_ranks,
		       (unsigned long long)entry->n_rows,
		       (unsigned long long)entry->part_numel,
		       (unsigned long long)entry->numel,
		       (unsigned long long)entry->padded_numel, launch->n,
		       launch->first, launch->factor,
		       launch->is_added ? ", added" : "");
	return text;
}
