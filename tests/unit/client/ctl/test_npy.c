/* Tests .npy headers: those that numpy writes are read, and those that cannot
 * be tensors are refused. */
#include "client/ctl/npy.h"
#include "proto/error.h"
#include "tests/lib/check.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Write a header of `version` around `dict`. Returns its size. */
static size_t frame(uint8_t *buffer, int version, const char *dict)
{
	size_t begin = version == 1 ? 10 : 12, size = strlen(dict);

	memcpy(buffer, "\x93NUMPY", 6);
	memset(buffer + 6, 0, 6);
	buffer[6] = (uint8_t)version;
	buffer[8] = (uint8_t)size;
	buffer[9] = (uint8_t)(size >> 8);
	memcpy(buffer + begin, dict, size);
	return begin + size;
}

static int parse(int version, const char *dict, uint64_t data_size,
		 struct npy *ret, struct error *err)
{
	uint8_t buffer[1024];
	size_t size = frame(buffer, version, dict);

	return npy_parse(buffer, size, size + data_size, ret, err);
}

Test(npy, headers_of_all_versions_are_read)
{
	for (int version = 1; version <= 3; version++) {
		struct npy npy;

		cr_assert(zero(int, parse(version,
					  "{'descr': '<f4', 'fortran_order': "
					  "False, 'shape': (2, 3), }  \n",
					  24, &npy, NULL)));
		cr_assert(eq(u32, npy.type.dtype, DTYPE_F32));
		cr_assert(eq(u32, npy.type.n_dims, 2));
		cr_assert(eq(i64, npy.type.shape[0], 2));
		cr_assert(eq(i64, npy.type.shape[1], 3));
		cr_assert(eq(i64, npy.type.strides[0], 3));
		cr_assert(eq(u64, npy.size, 24));
	}
}

Test(npy, order_and_spacing_of_the_keys_do_not_matter)
{
	struct npy npy;

	cr_assert(zero(int, parse(1,
				  " {\"shape\":(7,),'fortran_order':True,"
				  "'descr':'|u1'}\n",
				  7, &npy, NULL)));
	cr_assert(eq(u32, npy.type.dtype, DTYPE_U8));
	cr_assert(eq(i64, npy.type.shape[0], 7));
}

Test(npy, a_scalar_and_an_empty_array_are_allowed)
{
	struct npy npy;

	cr_assert(zero(int, parse(1,
				  "{'descr': '<c16', 'fortran_order': False, "
				  "'shape': ()}",
				  16, &npy, NULL)));
	cr_assert(eq(u32, npy.type.n_dims, 0));
	cr_assert(zero(int, parse(1,
				  "{'descr': '<i8', 'fortran_order': False, "
				  "'shape': (4, 0)}",
				  0, &npy, NULL)));
	cr_assert(eq(u64, npy.size, 0));
}

#define ORDER "'fortran_order': False"

static const struct {
	const char *dict;
	uint64_t data_size;
	const char *why;
} refusals[] = {
	{"{'descr': '>f4', " ORDER ", 'shape': (1,)}", 4, "big-endian"},
	{"{'descr': '<f4', 'fortran_order': True, 'shape': (2, 2)}", 16,
	 "Fortran"},
	{"{'descr': [('a', '<f4')], " ORDER ", 'shape': (1,)}", 4, "records"},
	{"{'descr': '<U3', " ORDER ", 'shape': (1,)}", 12, "<U3"},
	{"{'descr': '|O', " ORDER ", 'shape': (1,)}", 8, "unknown"},
	{"{'descr': '', " ORDER ", 'shape': (1,)}", 8, "unknown"},
	{"{'descr': '<f4', " ORDER ", 'shape': (2,)}", 4, "need 8 bytes"},
	{"{'descr': '<f4', " ORDER ", 'shape': (2,)}", 9, "need 8 bytes"},
	{"{'descr': '<f4', " ORDER ", 'shape': (-1,)}", 4, "whole numbers"},
	{"{'descr': '<f4', " ORDER ", 'shape': (2 3)}", 24, "whole numbers"},
	{"{'descr': '<f4', " ORDER ", 'shape': (2.5,)}", 4, "whole numbers"},
	{"{'descr': '<f4', " ORDER ", 'shape': 3}", 12, "not a tuple"},
	{"{'descr': '<f4', " ORDER ", 'shape': (9223372036854775808,)}", 4,
	 "too large"},
	{"{'descr': '<f4', " ORDER
	 ", 'shape': (4294967296, 4294967296, 4294967296)}",
	 0, ""},
	{"{'descr': '<f4', " ORDER ", 'shape': (1,1,1,1,1,1,1,1,1)}", 4,
	 "dimensions"},
	{"{'descr': '<f4', " ORDER "}", 4, "lacks"},
	{"{'descr': '<f4', 'descr': '<f4', " ORDER ", 'shape': (1,)}", 4,
	 "twice"},
	{"{'descr': '<f4', " ORDER ", 'shape': (1,), 'x': 1}", 4, "'x'"},
	{"{'descr': '<f4', 'fortran_order': 0, 'shape': (1,)}", 4, "neither"},
	{"{'descr': '<f4', " ORDER ", 'shape': (1,)} + 1", 4,
	 "text after its '}'"},
	{"{'descr': '<f4', " ORDER ", 'shape': (1,)", 4, "does not end"},
	{"{'descr': '<f4", 4, "does not end"},
	{"    ", 4, "not a dictionary"},
};

Test(npy, headers_that_describe_no_tensor_are_refused)
{
	for (size_t i = 0; i < sizeof(refusals) / sizeof(*refusals); i++) {
		struct error err = ERROR_NULL;
		struct npy npy;

		cr_assert(lt(int,
			     parse(1, refusals[i].dict, refusals[i].data_size,
				   &npy, &err),
			     0),
			  "accepted: %s", refusals[i].dict);
		cr_assert(strstr(err.msg, refusals[i].why) != NULL,
			  "row %zu: %s", i, err.msg);
	}
}

Test(npy, a_file_that_ends_in_its_header_is_refused_at_every_byte)
{
	uint8_t buffer[256];
	size_t size =
		frame(buffer, 2, "{'descr': '|b1', " ORDER ", 'shape': (0,)}");
	struct npy npy;

	cr_assert(zero(int, npy_parse(buffer, size, size, &npy, NULL)));
	for (size_t i = 0; i < size; i++)
		cr_assert(lt(int, npy_parse(buffer, i, i, &npy, NULL), 0),
			  "%zu bytes were enough", i);
}

Test(npy, invalid_magic_versions_and_huge_headers_are_refused)
{
	uint8_t buffer[256];
	size_t size =
		frame(buffer, 2, "{'descr': '|b1', " ORDER ", 'shape': (0,)}");
	struct npy npy;

	buffer[11] = 0x7f;
	cr_assert(eq(int, npy_parse(buffer, size, size, &npy, NULL), -EINVAL));
	buffer[11] = 0;
	buffer[6] = 4;
	cr_assert(eq(int, npy_parse(buffer, size, size, &npy, NULL), -EINVAL));
	buffer[6] = 2;
	buffer[0] = 'P';
	cr_assert(eq(int, npy_parse(buffer, size, size, &npy, NULL), -EINVAL));
}

Test(npy, a_written_header_can_be_read)
{
	static const struct tensor_type types[] = {
		{.dtype = DTYPE_F32},
		{.dtype = DTYPE_BOOL, .n_dims = 1, .shape = {5}},
		{.dtype = DTYPE_C128, .n_dims = 3, .shape = {2, 0, 3}},
		{.dtype = DTYPE_U8,
		 .n_dims = 8,
		 .shape = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX,
			   INT64_MAX, INT64_MAX, INT64_MAX, 0}}};

	for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
		char header[NPY_HEADER_SIZE];
		size_t size = npy_make_header(&types[i], header);
		uint64_t bytes = i == 0 ? 4 : i == 1 ? 5 : 0;
		struct npy npy;

		cr_assert(eq(sz, size % 64, 0));
		/* the last one only has to fit: its strides overflow */
		if (i == 3)
			break;
		cr_assert(zero(int, npy_parse((uint8_t *)header, size,
					      size + bytes, &npy, NULL)));
		cr_assert(eq(u32, npy.type.dtype, types[i].dtype));
		cr_assert(eq(u32, npy.type.n_dims, types[i].n_dims));
		cr_assert(zero(int, memcmp(npy.type.shape, types[i].shape,
					   sizeof(npy.type.shape))));
	}
}

Test(npy, a_file_is_read_by_its_descriptor)
{
	struct tensor_type type = {
		.dtype = DTYPE_I16, .n_dims = 1, .shape = {3}};
	int fd = memfd_create("npy", MFD_CLOEXEC);
	char header[NPY_HEADER_SIZE];
	size_t size = npy_make_header(&type, header);
	struct npy npy;

	cr_assert(eq(sz, (size_t)write(fd, header, size), size));
	cr_assert(eq(int, npy_read(fd, &npy, NULL), -EINVAL));
	cr_assert(eq(int, (int)write(fd, "123456", 6), 6));
	cr_assert(zero(int, npy_read(fd, &npy, NULL)));
	cr_assert(eq(u64, npy.offset, size));
	cr_assert(eq(u64, npy.size, 6));
	close(fd);
}

Test(npy, dtypes_that_numpy_lacks_are_recognised)
{
	cr_assert(not(npy_holds(DTYPE_BF16)));
	cr_assert(not(npy_holds(DTYPE_F8_E4M3)));
	cr_assert(not(npy_holds(99)));
	cr_assert(npy_holds(DTYPE_C64));
}
