/* Tests that sentences for errors have the right contents, and never
 * overflow. */
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

Test(error, set_stores_code_and_message)
{
	struct error err = ERROR_NULL;

	cr_assert(eq(int, error_set(&err, -EINVAL, "no %s", "way"), -EINVAL));
	cr_assert(eq(int, err.code, -EINVAL));
	cr_assert(eq(str, err.msg, "no way"));
}

Test(error, nomem_names_the_object_that_needs_memory)
{
	struct error err = ERROR_NULL;

	cr_assert(eq(int, error_nomem(&err, "%d samples", 3), -ENOMEM));
	cr_assert(eq(int, err.code, -ENOMEM));
	cr_assert(eq(str, err.msg, "cannot allocate memory for 3 samples"));
	cr_assert(eq(int, error_nomem(NULL, "samples"), -ENOMEM));
}

Test(error, errno_adds_the_reason)
{
	struct error err = ERROR_NULL;

	cr_assert(eq(int, error_errno(&err, -ENOENT, "open %s", "x"), -ENOENT));
	cr_assert(eq(str, err.msg, "open x: No such file or directory"));
}

Test(error, errno_that_the_library_does_not_know_shows_its_number)
{
	struct error err = ERROR_NULL;

	cr_assert(eq(int, error_errno(&err, -3999, "call"), -3999));
	cr_assert(eq(str, err.msg, "call: error -3999"));
}

Test(error, wrap_prefixes_the_text_of_the_caller)
{
	struct error err = ERROR_NULL;

	error_set(&err, -EIO, "read failed");
	cr_assert(eq(int, error_wrap(&err, -EIO, "tensor %d", 3), -EIO));
	cr_assert(eq(str, err.msg, "tensor 3: read failed"));
}

Test(error, wrap_of_an_empty_error_adds_no_colon)
{
	struct error err = ERROR_NULL;

	error_wrap(&err, -EIO, "tensor %d", 3);
	cr_assert(eq(str, err.msg, "tensor 3"));
	cr_assert(eq(int, err.code, -EIO));
}

Test(error, control_characters_in_a_message_are_replaced)
{
	struct error err = ERROR_NULL;

	error_set(&err, -EINVAL, "there is no %s", "a\nb\033[2J\177\xc3\xa4");
	cr_assert(eq(str, err.msg, "there is no a?b?[2J?\xc3\xa4"));
	error_wrap(&err, -EINVAL, "in\tx");
	cr_assert(eq(str, err.msg, "in?x: there is no a?b?[2J?\xc3\xa4"));
}

Test(error, arguments_may_point_into_the_error_itself)
{
	struct error err = ERROR_NULL;

	error_set(&err, -EIO, "inner");
	error_set(&err, -EINVAL, "outer of %s", err.msg);
	cr_assert(eq(str, err.msg, "outer of inner"));
}

Test(error, a_null_error_is_allowed)
{
	cr_assert(eq(int, error_set(NULL, -EIO, "x"), -EIO));
	cr_assert(eq(int, error_errno(NULL, -EIO, "x"), -EIO));
	cr_assert(eq(int, error_wrap(NULL, -EIO, "x"), -EIO));
}

Test(error, long_messages_are_cut_at_the_end_of_the_buffer)
{
	struct {
		struct error err;
		char guard[8];
	} box = {.guard = "guard"};
	char text[2 * ERROR_MSG_SIZE];

	memset(text, 'a', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	error_set(&box.err, -EIO, "%s", text);
	cr_assert(eq(sz, strlen(box.err.msg), ERROR_MSG_SIZE - 1));
	error_errno(&box.err, -EIO, "%s", text);
	cr_assert(eq(sz, strlen(box.err.msg), ERROR_MSG_SIZE - 1));
	error_wrap(&box.err, -EIO, "front");
	cr_assert(eq(sz, strlen(box.err.msg), ERROR_MSG_SIZE - 1));
	cr_assert(zero(int, strncmp(box.err.msg, "front: aaa", 10)));
	cr_assert(eq(str, box.guard, "guard"));
}

Test(error, long_messages_are_not_cut_within_a_character)
{
	static const char *const characters[] = {
		"a", "\xc3\xa4", "\xe2\x82\xac", "\xf0\x9f\x99\x82"};
	char text[2 * ERROR_MSG_SIZE], want[ERROR_MSG_SIZE];
	struct error err = ERROR_NULL;

	for (size_t size = 1; size <= 4; size++) {
		for (size_t i = 0; i + size < sizeof(text); i += size)
			memcpy(text + i, characters[size - 1], size + 1);
		for (size_t before = 0; before < size; before++) {
			size_t n = (ERROR_MSG_SIZE - 1 - before) / size * size;

			error_set(&err, -EIO, "%.*s%s", (int)before, "abc",
				  text);
			snprintf(want, sizeof(want), "%.*s%.*s", (int)before,
				 "abc", (int)n, text);
			cr_expect(eq(str, err.msg, want));
		}
	}
}

Test(error, a_sentence_of_bytes_without_characters_is_cut_somewhere)
{
	char text[2 * ERROR_MSG_SIZE];
	struct error err = ERROR_NULL;

	memset(text, '\x80', sizeof(text) - 1);
	text[sizeof(text) - 1] = 0;
	error_set(&err, -EIO, "%s", text);
	cr_assert(eq(sz, strlen(err.msg), ERROR_MSG_SIZE - 1));
}
