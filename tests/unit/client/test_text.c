/* Tests the values of fsdp-exporter's documents. */
#include "client/exporter/text.h"
#include "tests/lib/check.h"

static void expect(json_t *value, const char *expected)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY);

	cr_assert(text != NULL);
	cr_expect(eq(str, text, (char *)expected));
	free(text);
	json_decref(value);
}

Test(text, that_is_no_utf8_gets_question_marks)
{
	expect(text_json("caf\xc3\xa9"), "\"caf\xc3\xa9\"");
	expect(text_json("caf\xe9 \xc3\xa9"), "\"caf? ??\"");
}

Test(text, of_no_limit_is_null)
{
	expect(text_number(7), "7");
	expect(text_number(UINT64_MAX), "null");
}

Test(text, of_a_device_is_its_uuid)
{
	const struct fsdp_device host = {{0}}, gpu = {{0x12, 0x34}};

	expect(text_device(&host), "\"host\"");
	expect(text_device(&gpu),
	       "\"GPU-12340000-0000-0000-0000-000000000000\"");
}
