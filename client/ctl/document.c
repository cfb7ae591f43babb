/* Makes JSON documents. Times are in milliseconds, sizes in bytes. */
#include "client/ctl/document.h"

#include "proto/error.h"

#include <errno.h>
#include <stdio.h>

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
