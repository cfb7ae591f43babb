/* Tests the values of documents for programs. */
#include "client/ctl/document.h"
#include "tests/lib/check.h"
#include "tests/lib/json.h"

Test(document, text_that_is_not_utf8_gets_question_marks)
{
	expect_json(document_text("caf\xc3\xa9"), "\"caf\xc3\xa9\"");
	expect_json(document_text("caf\xe9 \xc3\xa9"), "\"caf? ??\"");
}

Test(document, numbers_are_limited_to_the_range_of_json_readers)
{
	expect_json(document_number(0), "0");
	expect_json(document_number(UINT64_C(1) << 63), "9223372036854775807");
	expect_json(document_number(UINT64_MAX), "9223372036854775807");
}

Test(document, a_shape_is_an_array)
{
	const int64_t shape[] = {2, -1, 3};

	expect_json(document_shape(shape, 3), "[2, -1, 3]");
	expect_json(document_shape(shape, 0), "[]");
}
