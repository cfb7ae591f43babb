/* Values of JSON in tests. Each test includes tests/lib/check.h before. */
#pragma once
#include <jansson.h>
#include <stdlib.h>

/* Checks the text of a JSON value, which must not be NULL. Consumes the
 * value. */
static inline void expect_json(json_t *value, const char *expected)
{
	char *text = json_dumps(value, JSON_ENCODE_ANY);

	cr_assert(text != NULL);
	cr_expect(eq(str, text, (char *)expected));
	free(text);
	json_decref(value);
}
