#include "tests/lib/check.h"

#include <criterion/event.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The operands of this thread's last comparison. */
static _Thread_local struct {
	enum {
		NOTHING,
		SIGNED,
		UNSIGNED,
		REAL,
		TEXT,
	} kind;
	union value {
		intmax_t i;
		uintmax_t u;
		double r;
		const char *s;
	} a, b;
} last;

bool check_begin(void)
{
	last.kind = NOTHING;
	return true;
}

static bool holds(enum check_relation relation, int is_less, int is_equal)
{
	switch (relation) {
	case CHECK_EQ:
		return is_equal;
	case CHECK_NE:
		return !is_equal;
	case CHECK_LT:
		return is_less;
	case CHECK_LE:
		return is_less || is_equal;
	case CHECK_GT:
		return !is_less && !is_equal;
	case CHECK_GE:
		return !is_less;
	}
	return false;
}

bool check_signed(enum check_relation relation, intmax_t a, intmax_t b)
{
	last.kind = SIGNED;
	last.a.i = a;
	last.b.i = b;
	return holds(relation, a < b, a == b);
}

bool check_unsigned(enum check_relation relation, uintmax_t a, uintmax_t b)
{
	last.kind = UNSIGNED;
	last.a.u = a;
	last.b.u = b;
	return holds(relation, a < b, a == b);
}

/* NaN is neither less than, nor equal to, nor greater than a number. */
bool check_real(enum check_relation relation, double a, double b)
{
	last.kind = REAL;
	last.a.r = a;
	last.b.r = b;
	if (isnan(a) || isnan(b))
		return relation == CHECK_NE;
	return holds(relation, a < b, a == b);
}

bool check_near(double a, double b, double epsilon)
{
	last.kind = REAL;
	last.a.r = a;
	last.b.r = b;
	return fabs(a - b) <= epsilon;
}

bool check_text(enum check_relation relation, const char *a, const char *b)
{
	int order;

	last.kind = TEXT;
	last.a.s = a;
	last.b.s = b;
	if (!a || !b)
		return holds(relation, !a && b, a == b);
	order = strcmp(a, b);
	return holds(relation, order < 0, order == 0);
}

static void print_values(FILE *out)
{
	switch (last.kind) {
	case NOTHING:
		break;
	case SIGNED:
		fprintf(out, " (%jd, %jd)", last.a.i, last.b.i);
		break;
	case UNSIGNED:
		fprintf(out, " (%ju, %ju; %#jx, %#jx)", last.a.u, last.b.u,
			last.a.u, last.b.u);
		break;
	case REAL:
		fprintf(out, " (%.17g, %.17g)", last.a.r, last.b.r);
		break;
	case TEXT:
		fprintf(out, " (\"%s\", \"%s\")", last.a.s ? last.a.s : "NULL",
			last.b.s ? last.b.s : "NULL");
		break;
	}
}

char *check_sentence(const char *text, const char *format, ...)
{
	char *sentence = NULL;
	size_t size;
	va_list args;
	FILE *out = open_memstream(&sentence, &size);

	if (!out)
		abort();
	fputs(text, out);
	print_values(out);
	if (strcmp(format, ": ") != 0) {
		va_start(args, format);
		vfprintf(out, format, args);
		va_end(args);
	}
	fclose(out);
	return sentence;
}

void check_failed(const char *file, unsigned int line, char *sentence)
{
	criterion_send_assert(&(struct criterion_assert_stats){
		.file = file, .line = line, .message = sentence});
	free(sentence);
}

/* Criterion does not declare its function as one that never returns. */
void check_abort(void)
{
	criterion_abort_test();
	abort();
}
