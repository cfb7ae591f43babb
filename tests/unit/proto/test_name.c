/* Tests which names are valid. */
#include "proto/error.h"
#include "proto/name.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <string.h>

static const struct {
	const char *name;
	int tensor, bundle; /* expected result of the checks */
} rows[] = {
	{"a", 0, -EINVAL},
	{"llama/model.layers.0.mlp.up_proj.weight", 0, -EINVAL},
	{"llama/", -EINVAL, 0},
	{"a/b/", -EINVAL, 0},
	{"...", 0, -EINVAL},
	{".a/..b/c..", 0, -EINVAL},
	{"with space", 0, -EINVAL},
	{"\xc3\xa4/\xe2\x82\xac/\xf0\x9f\x98\x80", 0, -EINVAL},
	{"", -EINVAL, -EINVAL},
	{"/", -EINVAL, -EINVAL},
	{"//", -EINVAL, -EINVAL},
	{"/a", -EINVAL, -EINVAL},
	{"a//b", -EINVAL, -EINVAL},
	{"a//", -EINVAL, -EINVAL},
	{".", -EINVAL, -EINVAL},
	{"..", -EINVAL, -EINVAL},
	{"../", -EINVAL, -EINVAL},
	{"a/./b", -EINVAL, -EINVAL},
	{"a/../b", -EINVAL, -EINVAL},
	{"a/b/..", -EINVAL, -EINVAL},
	/* control characters, also after eight plain bytes */
	{"a\n", -EINVAL, -EINVAL},
	{"a\x1f", -EINVAL, -EINVAL},
	{"a\x7f", -EINVAL, -EINVAL},
	{"12345678abcdefg\x1b", -EINVAL, -EINVAL},
	{"12345678abcdefg\x7f", -EINVAL, -EINVAL},
	{"12345678abc\x1f"
	 "defg",
	 -EINVAL, -EINVAL},
	{"\xc2\x9f", -EINVAL, -EINVAL}, /* U+009F */
	{"\xc2\xa0", 0, -EINVAL},       /* U+00A0 is not a control character */
	/* cut off, alone, overlong, surrogate, too large, never */
	{"\xc3", -EINVAL, -EINVAL},
	{"\xe2\x82", -EINVAL, -EINVAL},
	{"\xe2\x82/", -EINVAL, -EINVAL},
	{"\x80", -EINVAL, -EINVAL},
	{"1234567\x80", -EINVAL, -EINVAL},
	{"\xc0\xaf", -EINVAL, -EINVAL},
	{"\xe0\x80\xaf", -EINVAL, -EINVAL},
	{"\xf0\x80\x80\xaf", -EINVAL, -EINVAL},
	{"\xed\xa0\x80", -EINVAL, -EINVAL},
	{"\xf4\x90\x80\x80", -EINVAL, -EINVAL},
	{"\xf8\x88\x80\x80\x80", -EINVAL, -EINVAL},
	{"\xff", -EINVAL, -EINVAL},
	/* 16 components, and 17 */
	{"1/2/3/4/5/6/7/8/9/a/b/c/d/e/f/g", 0, -EINVAL},
	{"1/2/3/4/5/6/7/8/9/a/b/c/d/e/f/g/", -EINVAL, 0},
	{"1/2/3/4/5/6/7/8/9/a/b/c/d/e/f/g/h", -EINVAL, -EINVAL},
	{"1/2/3/4/5/6/7/8/9/a/b/c/d/e/f/g/h/", -EINVAL, -EINVAL},
};

Test(name, rules_hold_for_tensors_and_bundles)
{
	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct error err = ERROR_NULL;

		cr_expect(
			eq(int, name_check(rows[i].name, &err), rows[i].tensor),
			"row %zu: %s", i, err.msg);
		err = ERROR_NULL;
		cr_expect(eq(int, name_check_bundle(rows[i].name, &err),
			     rows[i].bundle),
			  "row %zu: %s", i, err.msg);
	}
}

Test(name, more_than_255_bytes_are_refused)
{
	char name[NAME_MAX_SIZE + 2];

	memset(name, 'a', sizeof(name));
	name[NAME_MAX_SIZE] = 0;
	cr_assert(zero(int, name_check(name, NULL)));
	name[NAME_MAX_SIZE - 1] = '/';
	cr_assert(zero(int, name_check_bundle(name, NULL)));
	name[NAME_MAX_SIZE - 1] = 'a';
	name[NAME_MAX_SIZE] = 'a';
	name[NAME_MAX_SIZE + 1] = 0;
	cr_assert(eq(int, name_check(name, NULL), -ENAMETOOLONG));
	name[NAME_MAX_SIZE] = '/';
	cr_assert(eq(int, name_check_bundle(name, NULL), -ENAMETOOLONG));
}

Test(name, errors_never_quote_bytes_that_are_unsafe_to_print)
{
	struct error err = ERROR_NULL;

	name_check("evil\x1b[31m", &err);
	cr_assert(zero(ptr, strchr(err.msg, '\x1b')));
}

Test(name, a_final_slash_denotes_a_bundle)
{
	cr_assert(name_is_bundle("llama/"));
	cr_assert(not(name_is_bundle("llama/x")));
	cr_assert(not(name_is_bundle("")));
}

Test(name, prefix_is_the_first_component)
{
	cr_assert(eq(sz, name_prefix_size("llama/x/y"), 5));
	cr_assert(eq(sz, name_prefix_size("llama"), 5));
	cr_assert(eq(sz, name_prefix_size("llama/"), 5));
}
