/*
 * Reads and writes numpy's .npy files. A 0 byte follows the header in memory,
 * so the parser may look at the next character without a check of the size. It
 * never goes backwards.
 */
#include "client/ctl/npy.h"

#include "proto/error.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define MAGIC      "\x93NUMPY"
#define MAGIC_SIZE 6

/* clang-format off */
static const char *const descrs[DTYPE_MAX + 1] = {
	[DTYPE_BOOL] = "|b1", [DTYPE_U8] = "|u1", [DTYPE_I8] = "|i1",
	[DTYPE_U16] = "<u2", [DTYPE_I16] = "<i2", [DTYPE_U32] = "<u4",
	[DTYPE_I32] = "<i4", [DTYPE_U64] = "<u8", [DTYPE_I64] = "<i8",
	[DTYPE_F16] = "<f2", [DTYPE_F32] = "<f4", [DTYPE_F64] = "<f8",
	[DTYPE_C64] = "<c8", [DTYPE_C128] = "<c16",
};
/* clang-format on */

enum { HAS_DESCR = 1, HAS_ORDER = 2, HAS_SHAPE = 4, HAS_ALL = 7 };

struct parser {
	const char *p;
	struct tensor_type type;
	bool is_fortran;
	unsigned int has;
};

bool npy_holds(uint32_t dtype)
{
	return dtype <= DTYPE_MAX && descrs[dtype];
}

static void skip_spaces(struct parser *parser)
{
	while (*parser->p == ' ' || *parser->p == '\t' || *parser->p == '\n' ||
	       *parser->p == '\r')
		parser->p++;
}

/* If `text` is next, steps over it and the spaces around it. */
static bool take(struct parser *parser, const char *text)
{
	size_t size = strlen(text);

	skip_spaces(parser);
	if (strncmp(parser->p, text, size) != 0)
		return false;
	parser->p += size;
	skip_spaces(parser);
	return true;
}

/* Parses a string in single or double quotes, without escapes. */
static int take_string(struct parser *parser, char *ret, size_t size,
		       struct error *err)
{
	char quote = *parser->p;
	const char *begin = parser->p + 1, *end;

	if (quote != '\'' && quote != '"')
		return error_set(err, -EINVAL,
				 "the header has no string where one must be");
	end = strchr(begin, quote);
	if (!end || (size_t)(end - begin) >= size ||
	    memchr(begin, '\\', (size_t)(end - begin)))
		return error_set(err, -EINVAL,
				 "the header has a string that is too long or "
				 "does not end");
	memcpy(ret, begin, (size_t)(end - begin));
	ret[end - begin] = '\0';
	parser->p = end + 1;
	skip_spaces(parser);
	return 0;
}

static int take_descr(struct parser *parser, struct error *err)
{
	char descr[16];
	int r;

	if (*parser->p == '[')
		return error_set(err, -EINVAL,
				 "an array of records cannot be a tensor");
	r = take_string(parser, descr, sizeof(descr), err);
	if (r < 0)
		return r;
	if (strlen(descr) < 3 || !strchr("<>|=", descr[0]))
		return error_set(err, -EINVAL, "dtype '%s' is unknown", descr);
	if (descr[0] == '>' && strcmp(descr + 2, "1") != 0)
		return error_set(err, -EINVAL,
				 "dtype '%s' is big-endian: convert it with "
				 "astype('<%s')",
				 descr, descr + 1);
	for (uint32_t i = 1; i <= DTYPE_MAX; i++) {
		if (descrs[i] && strcmp(descrs[i] + 1, descr + 1) == 0) {
			parser->type.dtype = i;
			return 0;
		}
	}
	return error_set(err, -EINVAL, "no tensor can have numpy's dtype '%s'",
			 descr);
}

static int take_order(struct parser *parser, struct error *err)
{
	if (take(parser, "False"))
		parser->is_fortran = false;
	else if (take(parser, "True"))
		parser->is_fortran = true;
	else
		return error_set(err, -EINVAL,
				 "fortran_order is neither True nor False");
	return 0;
}

static int take_size(struct parser *parser, struct error *err)
{
	int64_t value = 0;

	if (parser->type.n_dims == TENSOR_MAX_DIMS)
		return error_set(err, -EINVAL, "it has more than %d dimensions",
				 TENSOR_MAX_DIMS);
	if (*parser->p < '0' || *parser->p > '9')
		return error_set(err, -EINVAL,
				 "the shape is not a tuple of whole numbers");
	for (; *parser->p >= '0' && *parser->p <= '9'; parser->p++) {
		if (__builtin_mul_overflow(value, 10, &value) ||
		    __builtin_add_overflow(value, *parser->p - '0', &value))
			return error_set(err, -EINVAL,
					 "a number of the shape is too large");
	}
	parser->type.shape[parser->type.n_dims++] = value;
	skip_spaces(parser);
	return 0;
}

static int take_shape(struct parser *parser, struct error *err)
{
	int r;

	if (!take(parser, "("))
		return error_set(err, -EINVAL, "the shape is not a tuple");
	while (*parser->p != ')') {
		r = take_size(parser, err);
		if (r < 0)
			return r;
		if (!take(parser, ",") && *parser->p != ')')
			return error_set(err, -EINVAL,
					 "the shape is not a tuple of whole "
					 "numbers");
	}
	(void)take(parser, ")");
	return 0;
}

static int take_item(struct parser *parser, struct error *err)
{
	static const struct {
		const char *key;
		unsigned int bit;
		int (*take_value)(struct parser *parser, struct error *err);
	} items[] = {{"descr", HAS_DESCR, take_descr},
		     {"fortran_order", HAS_ORDER, take_order},
		     {"shape", HAS_SHAPE, take_shape}};
	char key[32];
	int r;

	r = take_string(parser, key, sizeof(key), err);
	if (r < 0)
		return r;
	if (!take(parser, ":"))
		return error_set(err, -EINVAL,
				 "the header is not a dictionary");
	for (size_t i = 0; i < sizeof(items) / sizeof(*items); i++) {
		if (strcmp(key, items[i].key) != 0)
			continue;
		if (parser->has & items[i].bit)
			return error_set(err, -EINVAL,
					 "the header has '%s' twice", key);
		parser->has |= items[i].bit;
		return items[i].take_value(parser, err);
	}
	return error_set(err, -EINVAL, "the header has an unknown key '%s'",
			 key);
}

static int parse_dict(struct parser *parser, struct error *err)
{
	int r;

	if (!take(parser, "{"))
		return error_set(err, -EINVAL,
				 "the header is not a dictionary");
	while (*parser->p != '}') {
		r = take_item(parser, err);
		if (r < 0)
			return r;
		if (!take(parser, ",") && *parser->p != '}')
			return error_set(err, -EINVAL,
					 "the header does not end in '}'");
	}
	(void)take(parser, "}");
	if (*parser->p)
		return error_set(err, -EINVAL,
				 "the header has text after its '}'");
	if (parser->has != HAS_ALL)
		return error_set(err, -EINVAL,
				 "the header lacks descr, fortran_order or "
				 "shape");
	return 0;
}

/* Finds the text of the header, whose offset and size depend on the version. */
static int find_text(const uint8_t *head, size_t head_size, size_t *ret_begin,
		     size_t *ret_size, struct error *err)
{
	size_t begin, size;

	if (head_size < MAGIC_SIZE + 6 || memcmp(head, MAGIC, MAGIC_SIZE) != 0)
		return error_set(err, -EINVAL, "this is not a .npy file");
	if (head[6] < 1 || head[6] > 3 || head[7] != 0)
		return error_set(err, -EINVAL,
				 "version %u.%u of the format is unknown",
				 head[6], head[7]);
	begin = head[6] == 1 ? 10 : 12;
	size = (size_t)head[8] | (size_t)head[9] << 8;
	if (head[6] > 1)
		size |= (size_t)head[10] << 16 | (size_t)head[11] << 24;
	if (size > NPY_MAX_HEADER - begin)
		return error_set(err, -EINVAL,
				 "a header of %zu bytes is too "
				 "large",
				 size);
	if (size > head_size - begin)
		return error_set(err, -EINVAL,
				 "the file ends within its header");
	*ret_begin = begin;
	*ret_size = size;
	return 0;
}

/* Checks that the header describes a valid tensor that matches the file's
 * size. */
static int check_parsed(struct parser *parser, uint64_t offset,
			uint64_t file_size, struct npy *ret, struct error *err)
{
	uint64_t size;
	int r;

	tensor_type_contiguous(&parser->type);
	r = tensor_type_check(&parser->type, &size, err);
	if (r < 0)
		return r;
	if (parser->is_fortran && parser->type.n_dims > 1)
		return error_set(err, -EINVAL,
				 "it is in Fortran order: store "
				 "numpy.ascontiguousarray() of it");
	if (file_size - offset != size)
		return error_set(err, -EINVAL,
				 "dtype and shape need %" PRIu64
				 " bytes, but the file has %" PRIu64,
				 size, file_size - offset);
	*ret = (struct npy){
		.type = parser->type, .offset = offset, .size = size};
	return 0;
}

int npy_parse(const uint8_t *head, size_t head_size, uint64_t file_size,
	      struct npy *ret, struct error *err)
{
	struct parser parser = {0};
	size_t begin = 0, size = 0;
	char *text;
	int r;

	r = find_text(head, head_size, &begin, &size, err);
	if (r < 0)
		return r;
	if (memchr(head + begin, 0, size))
		return error_set(err, -EINVAL, "the header has a 0 byte");
	text = strndup((const char *)head + begin, size);
	if (!text)
		return error_nomem(err, "the header");
	parser.p = text;
	r = parse_dict(&parser, err);
	free(text);
	if (r < 0)
		return r;
	return check_parsed(&parser, begin + size, file_size, ret, err);
}

int npy_read(int fd, struct npy *ret, struct error *err)
{
	uint8_t *head = malloc(NPY_MAX_HEADER);
	size_t size = 0;
	struct stat status;
	ssize_t n;
	int r;

	if (!head)
		return error_nomem(err, "the header");
	if (fstat(fd, &status) < 0) {
		r = error_errno(err, -errno, "cannot inspect the file");
		goto out;
	}
	do {
		n = pread(fd, head + size, NPY_MAX_HEADER - size, (off_t)size);
		if (n > 0)
			size += (size_t)n;
	} while (n > 0 || (n < 0 && errno == EINTR));
	if (n < 0)
		r = error_errno(err, -errno, "cannot read the header");
	else if ((uint64_t)status.st_size < size)
		r = error_set(err, -EINVAL,
			      "the file changed while it was read; try again");
	else
		r = npy_parse(head, size, (uint64_t)status.st_size, ret, err);
out:
	free(head);
	return r;
}

size_t npy_make_header(const struct tensor_type *type,
		       char buffer[NPY_HEADER_SIZE])
{
	char shape[TENSOR_MAX_DIMS * 24] = "";
	size_t used = 0, size;
	int n;

	assert(npy_holds(type->dtype));
	/* Python needs the comma in (3,), because (3) is a number. */
	for (uint32_t i = 0; i < type->n_dims; i++)
		used += (size_t)snprintf(shape + used, sizeof(shape) - used,
					 "%" PRId64 ",%s", type->shape[i],
					 i + 1 < type->n_dims ? " " : "");
	if (type->n_dims > 1)
		shape[used - 1] = '\0';
	n = snprintf(buffer + 10, NPY_HEADER_SIZE - 10,
		     "{'descr': '%s', 'fortran_order': False, "
		     "'shape': (%s), }",
		     descrs[type->dtype], shape);
	size = (10 + (size_t)n + 1 + 63) & ~(size_t)63;
	assert(size <= NPY_HEADER_SIZE);
	memset(buffer + 10 + n, ' ', size - 10 - (size_t)n);
	buffer[size - 1] = '\n';
	memcpy(buffer, MAGIC "\x01\x00", 8);
	buffer[8] = (char)((size - 10) & 0xff);
	buffer[9] = (char)((size - 10) >> 8);
	return size;
}
