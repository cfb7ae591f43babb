/* Tests the values of fsdp-exporter's documents. */
#include "client/exporter/text.h"
#include "tests/lib/check.h"
#include "tests/lib/json.h"

Test(text, of_a_missing_limit_is_null)
{
	expect_json(text_number(7), "7");
	expect_json(text_number(UINT64_MAX), "null");
}

Test(text, of_a_device_is_its_uuid)
{
	const struct fsdp_device host = {{0}}, gpu = {{0x12, 0x34}};

	expect_json(text_device(&host), "\"host\"");
	expect_json(text_device(&gpu),
		    "\"GPU-12340000-0000-0000-0000-000000000000\"");
}
