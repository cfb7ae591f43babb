#include "bundle.h"
#include "call.h"
#include "client.h"
#include "errors.h"
#include "names.h"
#include "options.h"
#include "spec.h"
#include "tensor.h"
#include "type.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- get ------------------------------------------------------------------ */

/* Consumes the hold of `held`, also on failure. */
static int add_member(PyObject *dict, struct link *link, size_t prefix_size,
		      struct fsdp_tensor *held, uint64_t *ret_version)
{
	struct fsdp_info info = {.struct_size = sizeof(info)};
	int r = fsdp_tensor_info(held, &info);
	PyObject *name, *tensor;

	if (r < 0) {
		fsdp_free(held);
		errors_raise(r);
		return -1;
	}
	*ret_version = info.version;
	name = PyUnicode_FromString(info.name + prefix_size);
	tensor = tensor_new(link, held);
	r = name && tensor ? PyDict_SetItem(dict, name, tensor) : -1;
	Py_XDECREF(name);
	Py_XDECREF(tensor);
	return r;
}

PyObject *bundle_members(struct link *link, PyObject *name,
			 struct fsdp_tensor **tensors, size_t n)
{
	size_t i, prefix_size = strlen(name_of(name));
	PyObject *dict = PyDict_New();
	uint64_t version = 0;

	for (i = 0; dict && i < n; i++)
		if (add_member(dict, link, prefix_size, tensors[i], &version) <
		    0)
			Py_CLEAR(dict);
	for (; i < n; i++)
		fsdp_free(tensors[i]);
	free(tensors);
	return dict ? Py_BuildValue("(KN)", (unsigned long long)version, dict)
		    : NULL;
}

static PyObject *get_members(PyObject *client, PyObject *name,
			     const struct fsdp_get_options *options)
{
	const char *text = name_of(name);
	struct fsdp_tensor **tensors;
	PyObject *members;
	struct link *link;
	struct call call;
	size_t n;
	int r;

	link = text ? client_enter(client, &call) : NULL;
	if (!link)
		return NULL;
	r = fsdp_bundle_get(link->client, text, options, &tensors, &n);
	call_end(&call);
	members = r < 0 ? errors_raise(r)
			: bundle_members(link, name, tensors, n);
	link_drop(link);
	return members;
}

PyObject *bundle_get(PyObject *self, PyObject *const *args, Py_ssize_t n_args,
		     PyObject *keywords)
{
	struct fsdp_get_options options;

	if (options_parse(OPTIONS_BUNDLE, args, n_args, keywords, &options) < 0)
		return NULL;
	return get_members(self, args[0], &options);
}

/* --- is it the newest? ---------------------------------------------------- */

static bool is_same(const struct fsdp_info *info, struct fsdp_tensor *other)
{
	struct fsdp_info its = {.struct_size = sizeof(its)};

	return fsdp_tensor_info(other, &its) == 0 && its.slot == info->slot &&
	       its.generation == info->generation;
}

/* libfsdp knows without the broker whether a version is still the newest. */
PyObject *bundle_shows(PyObject *self, PyObject *object)
{
	struct fsdp_get_options options = {.struct_size = sizeof(options),
					   .known_only = true,
					   .accepts_tainted = true};
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct tensor *tensor = tensor_of(object);
	struct fsdp_tensor *shown;
	struct link *link;
	bool is_shown;
	int r;

	link = tensor ? client_use(self) : NULL;
	if (!link)
		return NULL;
	r = fsdp_tensor_info(tensor->handle->tensor, &info);
	if (r == 0)
		r = fsdp_get(link->client, &info.name, 1, &options, &shown);
	is_shown = r == 0 && is_same(&info, shown);
	if (r == 0)
		fsdp_free(shown);
	link_drop(link);
	return r < 0 && r != -EAGAIN ? errors_raise(r)
				     : PyBool_FromLong(is_shown);
}

/* --- staging -------------------------------------------------------------- */

static PyTypeObject *stage_type;

/* fsdp._bundle.Stage has a lock, so only one thread at a time is in here. */
struct stage {
	PyObject_HEAD struct link *link;
	struct fsdp_bundle *bundle; /* NULL if it has ended */
	bool is_busy; /* in a call, which a signal handler may interrupt */
};

/* Consumes the caller's use of the link. */
static PyObject *stage_new(struct link *link, const char *name,
			   const struct fsdp_bundle_options *options)
{
	struct stage *stage = PyObject_New(struct stage, stage_type);
	struct call call;
	int r;

	if (!stage) {
		link_drop(link);
		return NULL;
	}
	stage->link = link;
	stage->bundle = NULL;
	stage->is_busy = false;
	if (call_begin(&call) == 0) {
		r = fsdp_bundle_begin(link->client, name, options,
				      &stage->bundle);
		call_end(&call);
		if (r == 0)
			return (PyObject *)stage;
		errors_raise(r);
	}
	Py_DECREF(stage);
	return NULL;
}

PyObject *bundle_stage(PyObject *self, PyObject *args)
{
	struct fsdp_bundle_options options = {.struct_size = sizeof(options)};
	unsigned long long ttl_ms, size_hint;
	const char *name, *device;
	PyObject *timeout;
	struct link *link;
	int r = 0;

	if (!PyArg_ParseTuple(args, "sIKIIKzOI", &name, &options.flags, &ttl_ms,
			      &options.access.mode, &options.access.gid,
			      &size_hint, &device, &timeout, &options.n_kept) ||
	    options_parse_time(timeout, &options.timeout_ms) < 0)
		return NULL;
	options.ttl_ms = ttl_ms;
	options.size_hint = size_hint;
	if (device)
		r = fsdp_device_parse(device, &options.device);
	if (r < 0)
		return errors_raise(r);
	link = client_use(self);
	return link ? stage_new(link, name, &options) : NULL;
}

static struct fsdp_bundle *bundle_of(PyObject *self)
{
	struct fsdp_bundle *bundle = ((struct stage *)self)->bundle;

	if (!bundle)
		errors_raise_text(-EINVAL, "the bundle was committed or "
					   "aborted; stage another one");
	return bundle;
}

static PyObject *alloc_members(struct stage *stage, const struct names *names,
			       const struct fsdp_spec *specs)
{
	struct fsdp_tensor **tensors = calloc(names->n + 1, sizeof(*tensors));
	PyObject *list = NULL;
	struct call call;
	int r;

	if (!tensors)
		return PyErr_NoMemory();
	if (call_begin(&call) == 0) {
		stage->is_busy = true;
		r = fsdp_bundle_alloc(stage->bundle, names->items, specs,
				      names->n, tensors);
		stage->is_busy = false;
		call_end(&call);
		list = r < 0 ? errors_raise(r)
			     : tensor_list(stage->link, tensors, names->n);
	}
	free(tensors);
	return list;
}

/* Implements alloc([full name], [(shape, dtype)]). */
static PyObject *stage_alloc(PyObject *self, PyObject *args)
{
	PyObject *list, *pairs, *tensors = NULL;
	struct fsdp_spec *specs;
	struct names names;

	if (!PyArg_ParseTuple(args, "O!O!", &PyList_Type, &list, &PyList_Type,
			      &pairs) ||
	    !bundle_of(self) || names_open(&names, list) < 0)
		return NULL;
	if (names.n != (size_t)PyList_Size(pairs)) {
		errors_raise_text(
			-EINVAL,
			"the lists of names and of types differ in length");
	} else {
		specs = spec_parse_list(pairs);
		if (specs)
			tensors = alloc_members((struct stage *)self, &names,
						specs);
		free(specs);
	}
	names_close(&names);
	return tensors;
}

static PyObject *stage_commit(PyObject *self, PyObject *none)
{
	struct stage *stage = (struct stage *)self;
	struct call call;
	uint64_t version;
	int r;

	(void)none;
	if (!bundle_of(self) || call_begin(&call) < 0)
		return NULL;
	stage->is_busy = true;
	r = fsdp_bundle_commit(stage->bundle, &version);
	stage->is_busy = false;
	call_end(&call);
	if (r < 0)
		return errors_raise(r);
	stage->bundle = NULL;
	return PyLong_FromUnsignedLongLong(version);
}

static int abort_bundle(void *bundle)
{
	fsdp_bundle_abort(bundle);
	return 0;
}

static void stage_end(struct stage *stage)
{
	struct fsdp_bundle *bundle = stage->bundle;

	stage->bundle = NULL;
	if (bundle && !link_is_left_open())
		link_end(stage->link, abort_bundle, bundle);
}

static PyObject *stage_abort(PyObject *self, PyObject *none)
{
	struct stage *stage = (struct stage *)self;

	(void)none;
	if (stage->is_busy)
		return errors_raise_text(-EBUSY,
					 "the stage is in the call that this "
					 "signal handler interrupted; abort it "
					 "after that call");
	stage_end(stage);
	Py_RETURN_NONE;
}

static void stage_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);

	stage_end((struct stage *)self);
	link_drop(((struct stage *)self)->link);
	PyObject_Free(self);
	Py_DECREF(type);
}

static PyMethodDef methods[] = {
	{"alloc", stage_alloc, METH_VARARGS, NULL},
	{"commit", stage_commit, METH_NOARGS, NULL},
	{"abort", stage_abort, METH_NOARGS, NULL},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, stage_dealloc},
	{Py_tp_methods, methods},
	{0, NULL},
};

int bundle_add(PyObject *module)
{
	stage_type = type_add(module, "fsdp._fsdp.Stage", sizeof(struct stage),
			      Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);
	return stage_type ? 0 : -1;
}
