#include "options.h"
#include "errors.h"
#include <errno.h>
#include <math.h>
#include <string.h>

int options_parse_time(PyObject *seconds, int32_t *ret_ms)
{
	double ms;

	if (seconds == Py_None) {
		*ret_ms = -1;
		return 0;
	}
	ms = PyFloat_AsDouble(seconds) * 1000;
	if (PyErr_Occurred())
		return -1;
	if (!(ms >= 0)) {
		errors_raise_text(-EINVAL,
				  "a time must be 0 or more seconds, or None "
				  "to wait for ever");
		return -1;
	}
	*ret_ms = ms < INT32_MAX ? (int32_t)ceil(ms) : INT32_MAX;
	return 0;
}

static int parse_uid(PyObject *value, struct fsdp_get_options *ret)
{
	unsigned long uid;

	if (value == Py_None)
		return 0;
	uid = PyLong_AsUnsignedLong(value);
	if (PyErr_Occurred())
		return -1;
	if (uid > UINT32_MAX) {
		errors_raise_text(-EINVAL, "trusted_uid=%lu is no uid", uid);
		return -1;
	}
	ret->is_trust_set = true;
	ret->trusted_uid = (uint32_t)uid;
	return 0;
}

static const char *const functions[] = {"get", "aget", "bundle", "abundle"};

static bool has_versions(enum options_of function)
{
	return function >= OPTIONS_BUNDLE;
}

static int parse_one(enum options_of function, const char *name,
		     PyObject *value, struct fsdp_get_options *ret)
{
	int is_true;

	if (strcmp(name, "timeout") == 0)
		return options_parse_time(value, &ret->timeout_ms);
	if (strcmp(name, "trusted_uid") == 0)
		return parse_uid(value, ret);
	if (strcmp(name, "newer_than") == 0) {
		ret->newer_than = PyLong_AsUnsignedLongLong(value);
		return PyErr_Occurred() ? -1 : 0;
	}
	if (strcmp(name, "version") == 0 && has_versions(function)) {
		ret->version = PyLong_AsUnsignedLongLong(value);
		return PyErr_Occurred() ? -1 : 0;
	}
	if (strcmp(name, "stream") == 0) {
		ret->stream = value == Py_None ? NULL : PyLong_AsVoidPtr(value);
		return PyErr_Occurred() ? -1 : 0;
	}
	if (strcmp(name, "tainted") == 0) {
		is_true = PyObject_IsTrue(value);
		ret->accepts_tainted = is_true > 0;
		return is_true < 0 ? -1 : 0;
	}
	PyErr_Format(PyExc_TypeError,
		     "%s() has no argument '%s'; it has timeout, stream, "
		     "trusted_uid, newer_than%s and tainted",
		     functions[function], name,
		     has_versions(function) ? ", version" : "");
	return -1;
}

int options_parse(enum options_of function, PyObject *const *args,
		  Py_ssize_t n_args, PyObject *keywords,
		  struct fsdp_get_options *ret)
{
	Py_ssize_t n = keywords ? PyTuple_Size(keywords) : 0;

	if (n_args != 1) {
		PyErr_Format(PyExc_TypeError,
			     "%s() takes one name%s, and keyword arguments; "
			     "%zd were given",
			     functions[function],
			     has_versions(function) ? ""
						    : " or an iterable "
						      "of names",
			     n_args);
		return -1;
	}
	*ret = (struct fsdp_get_options){.struct_size = sizeof(*ret)};
	for (Py_ssize_t i = 0; i < n; i++) {
		const char *name = PyUnicode_AsUTF8AndSize(
			PyTuple_GetItem(keywords, i), NULL);

		if (!name || parse_one(function, name, args[1 + i], ret) < 0)
			return -1;
	}
	return 0;
}
