#include "errors.h"
#include "call.h"
#include "client/fsdp.h"
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void raise_sentence(int r, const char *sentence)
{
	PyObject *module, *error, *text;

	module = PyImport_ImportModule("fsdp._errors");
	if (!module)
		return;
	/* What the sentence quotes may be cut, or no UTF-8. */
	text = PyUnicode_DecodeUTF8(sentence, (Py_ssize_t)strlen(sentence),
				    "replace");
	error = PyObject_CallMethod(module, "make", "iN", -r, text);
	Py_DECREF(module);
	if (!error)
		return;
	PyErr_SetObject((PyObject *)Py_TYPE(error), error);
	Py_DECREF(error);
}

void *errors_raise(int r)
{
	char sentence[1024];
	const char *said = fsdp_error();

	if (call_raise())
		return NULL;
	/* The sentence is copied, because importing a module may run other
	 * calls of libfsdp, which replace it. */
	snprintf(sentence, sizeof(sentence), "%s", *said ? said : strerror(-r));
	raise_sentence(r, sentence);
	return NULL;
}

void *errors_raise_text(int r, const char *format, ...)
{
	char sentence[1024];
	va_list args;

	va_start(args, format);
	vsnprintf(sentence, sizeof(sentence), format, args);
	va_end(args);
	raise_sentence(r, sentence);
	return NULL;
}
