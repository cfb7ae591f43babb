/*
 * The assertions of all tests. cr_assert() ends a test that fails; after
 * cr_expect() it continues. Both take a condition, and optionally a message as
 * for printf(). Conditions are any expression, or these words, which show both
 * values: eq(int, a, b), ne, lt, le, gt, ge, zero(int, a), epsilon_eq(dbl, a,
 * b, e).
 *
 * They have the syntax of the assertions of criterion/new/assert.h. Those
 * expand to so much code that a test took twice as long to compile (three times
 * with sanitizers).
 */
#pragma once

#include <criterion/criterion.h>
#include <stdbool.h>
#include <stdint.h>

enum check_relation {
	CHECK_EQ,
	CHECK_NE,
	CHECK_LT,
	CHECK_LE,
	CHECK_GT,
	CHECK_GE,
};

/* Begins an assertion in this thread. Returns true. */
bool check_begin(void);

/* These compare both values, and keep them for the message of the assertion. */
bool check_signed(enum check_relation relation, intmax_t a, intmax_t b);
bool check_unsigned(enum check_relation relation, uintmax_t a, uintmax_t b);
bool check_real(enum check_relation relation, double a, double b);
bool check_near(double a, double b, double epsilon);
bool check_text(enum check_relation relation, const char *a, const char *b);

/* Returns the message of a condition that does not hold: its text, the values
 * that were compared last, if any, and the caller's message, which begins with
 * ": ". The caller frees it. */
char *check_sentence(const char *text, const char *format, ...)
	__attribute__((format(printf, 2, 3)));

/* Reports such a message, and frees it. */
void check_failed(const char *file, unsigned int line, char *sentence);

/* Ends the running test as failed. */
_Noreturn void check_abort(void);

#define CHECK_TYPE(tag, type, compare)                                         \
	static inline bool check_##tag(enum check_relation relation, type a,   \
				       type b)                                 \
	{                                                                      \
		return compare(relation, a, b);                                \
	}

CHECK_TYPE(chr, char, check_signed)
CHECK_TYPE(i8, int8_t, check_signed)
CHECK_TYPE(i32, int32_t, check_signed)
CHECK_TYPE(i64, int64_t, check_signed)
CHECK_TYPE(int, int, check_signed)
CHECK_TYPE(long, long, check_signed)
CHECK_TYPE(llong, long long, check_signed)
CHECK_TYPE(u8, uint8_t, check_unsigned)
CHECK_TYPE(u16, uint16_t, check_unsigned)
CHECK_TYPE(u32, uint32_t, check_unsigned)
CHECK_TYPE(u64, uint64_t, check_unsigned)
CHECK_TYPE(uint, unsigned int, check_unsigned)
CHECK_TYPE(ulong, unsigned long, check_unsigned)
CHECK_TYPE(sz, size_t, check_unsigned)
CHECK_TYPE(flt, float, check_real)
CHECK_TYPE(dbl, double, check_real)
CHECK_TYPE(str, const char *, check_text)

static inline bool check_ptr(enum check_relation relation, const void *a,
			     const void *b)
{
	return check_unsigned(relation, (uintptr_t)a, (uintptr_t)b);
}

#define eq(tag, a, b) check_##tag(CHECK_EQ, a, b)
#define ne(tag, a, b) check_##tag(CHECK_NE, a, b)
#define lt(tag, a, b) check_##tag(CHECK_LT, a, b)
#define le(tag, a, b) check_##tag(CHECK_LE, a, b)
#define gt(tag, a, b) check_##tag(CHECK_GT, a, b)
#define ge(tag, a, b) check_##tag(CHECK_GE, a, b)
#define zero(tag, a)  check_##tag(CHECK_EQ, a, 0)
#define not(condition) (!(condition))

#define epsilon_eq(tag, a, b, epsilon) check_near(a, b, epsilon)

#define CHECK_CONDITION(condition, text, fail, ...)                            \
	do {                                                                   \
		if (!(check_begin() && (condition))) {                         \
			check_failed(__FILE__, __LINE__,                       \
				     check_sentence(text, ": " __VA_ARGS__));  \
			fail();                                                \
		}                                                              \
	} while (0)

#undef cr_assert
#undef cr_expect
#define cr_assert(condition, ...)                                              \
	CHECK_CONDITION(condition, #condition, criterion_abort_test,           \
			__VA_ARGS__)
#define cr_expect(condition, ...)                                              \
	CHECK_CONDITION(condition, #condition, criterion_continue_test,        \
			__VA_ARGS__)
