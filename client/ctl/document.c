/* Makes and reads JSON documents. Times are in milliseconds, sizes in bytes. */
#include "client/ctl/document.h"

#include "proto/error.h"

#include <errno.h>
#include <stdio.h>
#include <sys/stat.h>

json_t *document_number(uint64_t value)
{
	return json_integer(value > INT64_MAX ? INT64_MAX : (json_int_t)value);
}

int document_print(json_t *document, struct error *err)
{
	int r;

	if (!document)
		return error_nomem(err, "the document");
	r = json_dumpf(document, stdout, JSON_INDENT(2));
	json_decref(document);
	if (r < 0 || putchar('\n') == EOF)
		return error_errno(err, -errno, "cannot write standard output");
	return 0;
}

static int read_file(FILE *file, json_t **ret, struct stat *ret_status,
		     struct error *err)
{
	json_error_t cause;

	if (fstat(fileno(file), ret_status) < 0)
		return error_errno(err, -errno, "cannot inspect it");
	if (S_ISDIR(ret_status->st_mode))
		return error_set(err, -EISDIR,
				 "it is a directory, not a file; remove or "
				 "rename it, or name another");
	*ret = json_loadf(file, JSON_REJECT_DUPLICATES, &cause);
	return *ret ? 0 : error_set(err, -EINVAL, "%s", cause.text);
}

int document_read(const char *path, json_t **ret, struct stat *ret_status,
		  struct error *err)
{
	FILE *file = fopen(path, "re");
	int r;

	if (!file)
		return error_errno(err, -errno, "cannot open %s", path);
	r = read_file(file, ret, ret_status, err);
	(void)fclose(file);
	return r < 0 ? error_wrap(err, r, "%s", path) : 0;
}
