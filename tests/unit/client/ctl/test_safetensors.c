/* Tests safetensors headers: valid ones are read, and the refusal of others
 * names the tensor. */
#include "client/ctl/safetensors.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static int parse(const char *json, uint64_t data_size, struct safetensors *ret,
		 struct error *err)
{
	return safetensors_parse(json, strlen(json), data_size, ret, err);
}

#define F32(name, shape, begin, end)                                           \
	"\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape                     \
	",\"data_offsets\":[" begin "," end "]}"

Test(safetensors, tensors_are_in_the_order_of_their_offsets)
{
	const char *json = "{\"__metadata__\":{\"format\":\"pt\"}," F32(
		"b", "[2]", "4", "12") "," F32("a", "[]", "0", "4") "}   ";
	struct safetensors file;

	cr_assert(zero(int, parse(json, 12, &file, NULL)));
	cr_assert(eq(sz, file.n_entries, 2));
	cr_assert(eq(str, file.entries[0].name, (char *)"a"));
	cr_assert(eq(u32, file.entries[0].type.n_dims, 0));
	cr_assert(eq(u64, file.entries[0].offset, 8 + strlen(json)));
	cr_assert(eq(str, file.entries[1].name, (char *)"b"));
	cr_assert(eq(u64, file.entries[1].offset, 8 + strlen(json) + 4));
	cr_assert(eq(u64, file.entries[1].size, 8));
	cr_assert(eq(i64, file.entries[1].type.shape[0], 2));
	safetensors_deinit(&file);
}

Test(safetensors, empty_tensors_and_empty_files_are_allowed)
{
	struct safetensors file;

	cr_assert(zero(int,
		       parse("{" F32("x", "[0]", "4", "4") "," F32(
				     "y", "[1]", "0",
				     "4") "," F32("z", "[3,0]", "0", "0") "}",
			     4, &file, NULL)));
	cr_assert(eq(str, file.entries[0].name, (char *)"z"));
	cr_assert(eq(str, file.entries[2].name, (char *)"x"));
	safetensors_deinit(&file);
	cr_assert(zero(int, parse("{}", 0, &file, NULL)));
	cr_assert(eq(sz, file.n_entries, 0));
	safetensors_deinit(&file);
}

Test(safetensors, every_dtype_is_read_with_its_size)
{
	static const struct {
		const char *name;
		uint32_t dtype;
		int size;
	} rows[] = {
		{"BOOL", DTYPE_BOOL, 1},       {"U8", DTYPE_U8, 1},
		{"I8", DTYPE_I8, 1},           {"U16", DTYPE_U16, 2},
		{"I16", DTYPE_I16, 2},         {"U32", DTYPE_U32, 4},
		{"I32", DTYPE_I32, 4},         {"U64", DTYPE_U64, 8},
		{"I64", DTYPE_I64, 8},         {"F16", DTYPE_F16, 2},
		{"BF16", DTYPE_BF16, 2},       {"F32", DTYPE_F32, 4},
		{"F64", DTYPE_F64, 8},         {"F8_E4M3", DTYPE_F8_E4M3, 1},
		{"F8_E5M2", DTYPE_F8_E5M2, 1}, {"C64", DTYPE_C64, 8}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		struct safetensors file;
		char json[128];

		snprintf(json, sizeof(json),
			 "{\"t\":{\"dtype\":\"%s\",\"shape\":[3],"
			 "\"data_offsets\":[0,%d]}}",
			 rows[i].name, 3 * rows[i].size);
		cr_assert(zero(int, parse(json, (uint64_t)rows[i].size * 3,
					  &file, NULL)),
			  "%s", rows[i].name);
		cr_assert(eq(u32, file.entries[0].type.dtype, rows[i].dtype));
		safetensors_deinit(&file);
	}
}

static const struct {
	const char *json;
	uint64_t data_size;
	const char *thing, *cause;
} refusals[] = {
	{"{" F32("a", "[2]", "0", "8") "," F32("b", "[2]", "4", "12") "}", 12,
	 "'b'", "overlaps with 'a'"},
	{"{" F32("a", "[2]", "0", "8") "," F32("b", "[2]", "0", "8") "}", 8,
	 "'b'", "overlaps"},
	{"{" F32("a", "[2]", "0", "8") "," F32("z", "[0]", "4", "4") "}", 8,
	 "'z'", "overlaps"},
	{"{" F32("a", "[1]", "0", "4") "," F32("b", "[1]", "8", "12") "}", 12,
	 "'b'", "4 bytes before tensor"},
	{"{" F32("a", "[1]", "4", "8") "}", 8, "'a'", "4 bytes before tensor"},
	{"{" F32("a", "[1]", "0", "4") "}", 5, "1 bytes",
	 "belong to no tensor"},
	{"{}", 1, "1 bytes", "belong to no tensor"},
	{"{" F32("a", "[2]", "0", "8") "}", 7, "'a'", "truncated"},
	{"{" F32("a", "[1]", "0", "4") "," F32("a", "[1]", "4", "8") "}", 8,
	 "a", "duplicate"},
	{"{\"a\":{\"dtype\":\"F32\",\"dtype\":\"F32\",\"shape\":[1],"
	 "\"data_offsets\":[0,4]}}",
	 4, "dtype", "duplicate"},
	{"{" F32("a", "[9223372036854775808]", "0", "4") "}", 4, "header",
	 "too big integer"},
	{"{" F32("a", "[1]", "0", "18446744073709551616") "}", 4, "header",
	 "too big integer"},
	{"{" F32("a", "[1]", "0", "4.0") "}", 4, "'a'", "whole numbers"},
	{"{" F32("a", "[1e0]", "0", "4") "}", 4, "'a'", "whole number"},
	{"{" F32("a", "[9007199254740993.0]", "0", "4") "}", 4, "'a'",
	 "whole number"},
	{"{" F32("a", "[-1]", "0", "4") "}", 4, "'a'", "whole number"},
	{"{" F32("a", "[1]", "-4", "0") "}", 4, "'a'", "negative"},
	{"{" F32("a", "[1]", "4", "0") "}", 4, "'a'", "before it begins"},
	{"{" F32("a", "[2]", "0", "4") "}", 4, "'a'", "dtype and shape need 8"},
	{"{" F32("a", "[0]", "0", "4") "}", 4, "'a'", "dtype and shape need 0"},
	{"{" F32("a", "[4294967296,4294967296]", "0", "0") "}", 0, "'a'", ""},
	{"{" F32("a", "[9223372036854775807,9223372036854775807,0]", "0",
		 "4") "}",
	 4, "'a'", ""},
	{"{" F32("a", "[1,1,1,1,1,1,1,1,1]", "0", "4") "}", 4, "'a'",
	 "dimensions"},
	{"{" F32("a", "{}", "0", "4") "}", 4, "'a'", "shape is not an array"},
	{"{" F32("a", "[[1]]", "0", "4") "}", 4, "'a'", "whole number"},
	{"{\"a\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,4]}}", 4,
	 "'a'", "'F4' is unknown"},
	{"{\"a\":{\"dtype\":7,\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'a'",
	 "not a string"},
	{"{\"a\":{\"shape\":[1],\"data_offsets\":[0,4]}}", 4, "'a'",
	 "not a string"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1]}}", 4, "'a'", "data_offsets"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4,4]}}",
	 4, "'a'", "data_offsets"},
	{"{\"a\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":"
	 "[\"0\",\"4\"]}}",
	 4, "'a'", "data_offsets"},
	{"{\"a\":[]}", 0, "'a'", "not an object"},
	{"{\"__metadata__\":[]}", 0, "__metadata__", "not an object"},
	{"{\"__metadata__\":{\"k\":1}}", 0, "'k'", "not a string"},
	{"[]", 0, "safetensors file", "begin with '{'"},
	{" {}", 0, "safetensors file", "begin with '{'"},
	{"", 0, "safetensors file", "begin with '{'"},
	{"{", 0, "header", "not valid JSON"},
	{"{}{}", 0, "header", "not valid JSON"},
	{"{\"\xff\":1}", 0, "header", "decode byte"},
	{"{" F32("", "[1]", "0", "4") "}", 4, "tensor ''", ""},
	{"{" F32("a//b", "[1]", "0", "4") "}", 4, "'a//b'", ""},
	{"{" F32("../b", "[1]", "0", "4") "}", 4, "'../b'", ""},
	{"{" F32("a/", "[1]", "0", "4") "}", 4, "'a/'", ""},
	{"{" F32("a\\u001b", "[1]", "0", "4") "}", 4, "tensor", ""},
	{"{" F32("a\\u0000", "[1]", "0", "4") "}", 4, "header", "not valid"},
};

Test(safetensors, an_invalid_entry_is_refused_with_its_name_and_the_cause)
{
	for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++) {
		struct safetensors file = SAFETENSORS_NULL;
		struct error err = ERROR_NULL;
		int r = parse(refusals[i].json, refusals[i].data_size, &file,
			      &err);

		cr_assert(eq(int, r, -EINVAL), "row %zu: %s", i,
			  refusals[i].json);
		cr_assert(strstr(err.msg, refusals[i].thing) != NULL,
			  "row %zu: %s", i, err.msg);
		cr_assert(strstr(err.msg, refusals[i].cause) != NULL,
			  "row %zu: %s", i, err.msg);
		cr_assert(zero(ptr, file.entries), "row %zu wrote its output",
			  i);
	}
}

Test(safetensors, excessive_nesting_is_refused)
{
	size_t size = 1000000;
	char *json = malloc(size);
	struct error err = ERROR_NULL;
	struct safetensors file;

	memset(json, '[', size);
	memcpy(json, "{\"a\":", 5);
	cr_assert(eq(int, safetensors_parse(json, size, 0, &file, &err),
		     -EINVAL));
	cr_assert(strstr(err.msg, "depth") != NULL, "%s", err.msg);
	free(json);
}

/* Write a file with `length` in its first 8 bytes, followed by `rest`. */
static int make_file(uint64_t length, const char *rest)
{
	int fd = memfd_create("safetensors", MFD_CLOEXEC);
	size_t size = strlen(rest);

	cr_assert(eq(int, (int)write(fd, &length, 8), 8));
	cr_assert(eq(sz, (size_t)write(fd, rest, size), size));
	return fd;
}

Test(safetensors, the_length_of_the_header_is_checked_against_the_file)
{
	static const struct {
		uint64_t length;
		const char *rest, *cause;
	} rows[] = {{3, "{}", "truncated"},
		    {100000001, "{}", "more than 100000000"},
		    {UINT64_MAX, "{}", "more than"},
		    {0, "{}", "begin with"}};

	for (size_t i = 0; i < sizeof(rows) / sizeof(*rows); i++) {
		int fd = make_file(rows[i].length, rows[i].rest);
		struct error err = ERROR_NULL;
		struct safetensors file;

		cr_assert(eq(int, safetensors_read(fd, &file, &err), -EINVAL));
		cr_assert(strstr(err.msg, rows[i].cause) != NULL, "%s",
			  err.msg);
		close(fd);
	}
}

Test(safetensors, a_file_too_short_for_a_length_is_refused)
{
	int fd = memfd_create("safetensors", MFD_CLOEXEC);
	struct safetensors file;

	cr_assert(eq(int, safetensors_read(fd, &file, NULL), -EINVAL));
	cr_assert(eq(int, (int)write(fd, "1234567", 7), 7));
	cr_assert(eq(int, safetensors_read(fd, &file, NULL), -EINVAL));
	close(fd);
}

Test(safetensors, a_written_header_can_be_read)
{
	struct safetensors_item items[] = {
		{.name = "z/w",
		 .type = {.dtype = DTYPE_BF16, .n_dims = 2, .shape = {2, 3}}},
		{.name = "a \" quote", .type = {.dtype = DTYPE_F8_E4M3}}};
	struct safetensors file;
	char *header;
	size_t size;

	cr_assert(zero(int, safetensors_make_header(items, 2, NULL, &header,
						    &size, NULL)));
	cr_assert(eq(sz, size % 8, 0));
	cr_assert(zero(
		int, safetensors_parse(header + 8, size - 8, 13, &file, NULL)));
	cr_assert(eq(str, file.entries[0].name, (char *)"z/w"));
	cr_assert(eq(u32, file.entries[0].type.dtype, DTYPE_BF16));
	cr_assert(eq(i64, file.entries[0].type.shape[1], 3));
	cr_assert(eq(u64, file.entries[0].offset, size));
	cr_assert(eq(str, file.entries[1].name, (char *)"a \" quote"));
	cr_assert(eq(u64, file.entries[1].offset, size + 12));
	safetensors_deinit(&file);
	free(header);
}

Test(safetensors, written_metadata_can_be_read)
{
	json_t *metadata = json_pack("{s:s}", "format", "pt");
	struct safetensors file;
	char *header;
	size_t size;

	cr_assert(zero(int, safetensors_make_header(NULL, 0, metadata, &header,
						    &size, NULL)));
	cr_assert(zero(
		int, safetensors_parse(header + 8, size - 8, 0, &file, NULL)));
	cr_assert(json_equal(file.metadata, metadata));
	safetensors_deinit(&file);
	free(header);
	json_decref(metadata);
	cr_assert(zero(int, parse("{}", 0, &file, NULL)));
	cr_assert(zero(ptr, file.metadata));
	safetensors_deinit(&file);
}

Test(safetensors, a_dtype_the_format_lacks_is_refused_by_name)
{
	struct safetensors_item item = {.name = "c",
					.type = {.dtype = DTYPE_C128}};
	struct error err = ERROR_NULL;
	char *header = NULL;
	size_t size;

	cr_assert(eq(
		int,
		safetensors_make_header(&item, 1, NULL, &header, &size, &err),
		-ENOTSUP));
	cr_assert(strstr(err.msg, "'c'") != NULL, "%s", err.msg);
	cr_assert(zero(ptr, header));
}

Test(safetensors, a_tensor_cannot_be_called_like_the_metadata)
{
	struct safetensors_item item = {
		.name = SAFETENSORS_METADATA,
		.type = {.dtype = DTYPE_U8, .n_dims = 1, .shape = {1}}};
	char *header = NULL;
	size_t size;

	cr_assert(eq(
		int,
		safetensors_make_header(&item, 1, NULL, &header, &size, NULL),
		-ENOTSUP));
	cr_assert(zero(ptr, header));
}
