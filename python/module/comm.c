#include "comm.h"
#include "call.h"
#include "client.h"
#include "client/fsdp_collective.h"
#include "client/fsdp_comm.h"
#include "errors.h"
#include "link.h"
#include "options.h"
#include "transfer.h"
#include "type.h"
#include <errno.h>

static PyTypeObject *comm_type;

struct comm {
	/* NULL if this process has left */
	PyObject_HEAD struct fsdp_comm *comm;
	struct link *link;
	uint32_t n_ranks;
	atomic_bool is_busy;    /* set while a thread is in a call */
	atomic_bool is_aborted; /* if set, calls fail soon */
};

/* --- calls ---------------------------------------------------------------- */

static int check(struct comm *comm)
{
	if (!comm->comm)
		errors_raise_text(-EINVAL, "the communicator was left");
	else if (atomic_load(&comm->is_aborted))
		errors_raise_text(-ECONNABORTED, "the communicator was aborted "
						 "by this process");
	else if (atomic_exchange(&comm->is_busy, true))
		errors_raise_text(-EBUSY, "another thread is in a call of the "
					  "communicator; call one after "
					  "another");
	else
		return 0;
	return -1;
}

int comm_begin(PyObject *self, struct call *call)
{
	struct comm *comm = (struct comm *)self;

	if (check(comm) < 0)
		return -1;
	if (call_begin(call) < 0) {
		atomic_store(&comm->is_busy, false);
		return -1;
	}
	call_until(&comm->is_aborted);
	return 0;
}

int comm_end(PyObject *self, struct call *call, int r)
{
	struct comm *comm = (struct comm *)self;

	call_until(NULL);
	call_end(call);
	atomic_store(&comm->is_busy, false);
	if (r == 0)
		return 0;
	if (call_raise())
		return -1;
	if (r == -EINTR && atomic_load(&comm->is_aborted))
		(void)check(comm);
	else
		errors_raise(r);
	return -1;
}

struct fsdp_comm *comm_of(PyObject *self)
{
	return ((struct comm *)self)->comm;
}

static PyObject *done(PyObject *self, struct call *call, int r)
{
	return comm_end(self, call, r) < 0 ? NULL : Py_NewRef(Py_None);
}

/* --- arguments ------------------------------------------------------------ */

static int parse_part(PyObject *pair, struct fsdp_part *ret)
{
	unsigned long long address, count;

	if (!PyTuple_Check(pair)) {
		PyErr_SetString(PyExc_TypeError,
				"a part is a tuple (address, count)");
		return -1;
	}
	if (!PyArg_ParseTuple(pair, "KK", &address, &count))
		return -1;
	ret->data = (void *)(uintptr_t)address;
	ret->count = count;
	return 0;
}

/* Parses a list of (address, count), one for each rank. None becomes NULL; the
 * library refuses NULL in calls that do not allow it. */
static int parse_parts(const struct comm *comm, PyObject *list,
		       struct fsdp_part parts[FSDP_MAX_RANKS],
		       const struct fsdp_part **ret)
{
	*ret = NULL;
	if (list == Py_None)
		return 0;
	if (!PyList_Check(list) || PyList_Size(list) != comm->n_ranks) {
		errors_raise_text(-EINVAL,
				  "the parts must be a list with one for each "
				  "of the %u ranks",
				  comm->n_ranks);
		return -1;
	}
	for (uint32_t i = 0; i < comm->n_ranks; i++) {
		if (parse_part(PyList_GetItem(list, i), &parts[i]) < 0)
			return -1;
	}
	*ret = parts;
	return 0;
}

static void *memory(unsigned long long address)
{
	return (void *)(uintptr_t)address;
}

/* --- collectives ---------------------------------------------------------- */

static PyObject *comm_broadcast(PyObject *self, PyObject *args)
{
	unsigned long long data, count;
	unsigned dtype, root;
	struct call call;

	if (!PyArg_ParseTuple(args, "IKKI", &dtype, &data, &count, &root) ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call,
		    fsdp_broadcast(comm_of(self), (enum fsdp_dtype)dtype,
				   memory(data), count, root));
}

static PyObject *comm_all_reduce(PyObject *self, PyObject *args)
{
	unsigned long long in, out, count;
	unsigned dtype, how;
	struct call call;

	if (!PyArg_ParseTuple(args, "IIKKK", &dtype, &how, &in, &out, &count) ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call,
		    fsdp_all_reduce(comm_of(self), (enum fsdp_dtype)dtype,
				    (enum fsdp_reduction)how, memory(in),
				    memory(out), count));
}

static PyObject *comm_reduce(PyObject *self, PyObject *args)
{
	unsigned long long in, out, count;
	unsigned dtype, how, root;
	struct call call;

	if (!PyArg_ParseTuple(args, "IIKKKI", &dtype, &how, &in, &out, &count,
			      &root) ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call,
		    fsdp_reduce_to(comm_of(self), (enum fsdp_dtype)dtype,
				   (enum fsdp_reduction)how, memory(in),
				   memory(out), count, root));
}

static PyObject *comm_all_gather(PyObject *self, PyObject *args)
{
	struct fsdp_part parts[FSDP_MAX_RANKS];
	unsigned long long in, count;
	const struct fsdp_part *out;
	struct call call;
	PyObject *list;
	unsigned dtype;

	if (!PyArg_ParseTuple(args, "IKKO", &dtype, &in, &count, &list) ||
	    parse_parts((struct comm *)self, list, parts, &out) < 0 ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call,
		    fsdp_all_gather(comm_of(self), (enum fsdp_dtype)dtype,
				    memory(in), count, out));
}

static PyObject *comm_gather(PyObject *self, PyObject *args)
{
	struct fsdp_part parts[FSDP_MAX_RANKS];
	unsigned long long in, count;
	const struct fsdp_part *out;
	unsigned dtype, root;
	struct call call;
	PyObject *list;

	if (!PyArg_ParseTuple(args, "IKKOI", &dtype, &in, &count, &list,
			      &root) ||
	    parse_parts((struct comm *)self, list, parts, &out) < 0 ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call,
		    fsdp_gather_to(comm_of(self), (enum fsdp_dtype)dtype,
				   memory(in), count, out, root));
}

static PyObject *comm_scatter(PyObject *self, PyObject *args)
{
	struct fsdp_part parts[FSDP_MAX_RANKS];
	unsigned long long out, count;
	const struct fsdp_part *in;
	unsigned dtype, root;
	struct call call;
	PyObject *list;

	if (!PyArg_ParseTuple(args, "IOKKI", &dtype, &list, &out, &count,
			      &root) ||
	    parse_parts((struct comm *)self, list, parts, &in) < 0 ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call,
		    fsdp_scatter_from(comm_of(self), (enum fsdp_dtype)dtype, in,
				      memory(out), count, root));
}

static PyObject *comm_reduce_scatter(PyObject *self, PyObject *args)
{
	struct fsdp_part parts[FSDP_MAX_RANKS];
	unsigned long long out, count;
	const struct fsdp_part *in;
	unsigned dtype, how;
	struct call call;
	PyObject *list;

	if (!PyArg_ParseTuple(args, "IIOKK", &dtype, &how, &list, &out,
			      &count) ||
	    parse_parts((struct comm *)self, list, parts, &in) < 0 ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call,
		    fsdp_reduce_scatter(comm_of(self), (enum fsdp_dtype)dtype,
					(enum fsdp_reduction)how, in,
					memory(out), count));
}

static PyObject *comm_all_to_all(PyObject *self, PyObject *args)
{
	struct fsdp_part ins[FSDP_MAX_RANKS], outs[FSDP_MAX_RANKS];
	const struct fsdp_part *in, *out;
	PyObject *in_list, *out_list;
	struct call call;
	unsigned dtype;

	if (!PyArg_ParseTuple(args, "IOO", &dtype, &in_list, &out_list) ||
	    parse_parts((struct comm *)self, in_list, ins, &in) < 0 ||
	    parse_parts((struct comm *)self, out_list, outs, &out) < 0 ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call,
		    fsdp_all_to_all(comm_of(self), (enum fsdp_dtype)dtype, in,
				    out));
}

static PyObject *comm_barrier(PyObject *self, PyObject *time)
{
	int32_t timeout_ms;
	struct call call;

	if (options_parse_time(time, &timeout_ms) < 0 ||
	    comm_begin(self, &call) < 0)
		return NULL;
	return done(self, &call, fsdp_barrier(comm_of(self), timeout_ms));
}

/* --- without other ranks -------------------------------------------------- */

static int parse_addresses(PyObject *list, const void *ret[FSDP_MAX_RANKS],
			   uint32_t *ret_n)
{
	Py_ssize_t n = PyList_Check(list) ? PyList_Size(list) : -1;

	if (n < 0 || n > FSDP_MAX_RANKS) {
		errors_raise_text(-EINVAL,
				  "the inputs must be a list of at most %d "
				  "addresses",
				  FSDP_MAX_RANKS);
		return -1;
	}
	for (Py_ssize_t i = 0; i < n; i++)
		ret[i] = PyLong_AsVoidPtr(PyList_GetItem(list, i));
	*ret_n = (uint32_t)n;
	return PyErr_Occurred() ? -1 : 0;
}

PyObject *comm_fold(PyObject *module, PyObject *args)
{
	const void *in[FSDP_MAX_RANKS];
	unsigned long long out, count;
	unsigned dtype, how;
	PyObject *list;
	uint32_t n;
	int r;

	(void)module;
	if (!PyArg_ParseTuple(args, "IIOKK", &dtype, &how, &list, &out,
			      &count) ||
	    parse_addresses(list, in, &n) < 0)
		return NULL;
	Py_BEGIN_ALLOW_THREADS r =
		fsdp_fold((enum fsdp_dtype)dtype, (enum fsdp_reduction)how, in,
			  n, memory(out), count);
	Py_END_ALLOW_THREADS return r < 0 ? errors_raise(r)
					  : Py_NewRef(Py_None);
}

/* --- joining and leaving -------------------------------------------------- */

static PyObject *join(struct link *link, const char *name, uint32_t n_ranks,
		      uint32_t rank, int32_t timeout_ms)
{
	struct fsdp_comm_options options = {.struct_size = sizeof(options),
					    .timeout_ms = timeout_ms};
	struct fsdp_comm *joined;
	struct comm *comm;
	struct call call;
	int r;

	if (call_begin(&call) < 0)
		return NULL;
	r = fsdp_comm_join(link->client, name, n_ranks, rank, &options,
			   &joined);
	call_end(&call);
	if (r < 0)
		return errors_raise(r);
	comm = PyObject_New(struct comm, comm_type);
	if (!comm) {
		(void)fsdp_comm_leave(joined);
		return NULL;
	}
	comm->comm = joined;
	comm->link = link_use(link);
	comm->n_ranks = n_ranks;
	atomic_init(&comm->is_busy, false);
	atomic_init(&comm->is_aborted, false);
	return (PyObject *)comm;
}

PyObject *comm_join(PyObject *client, PyObject *args)
{
	unsigned n_ranks, rank;
	int32_t timeout_ms;
	struct link *link;
	const char *name;
	PyObject *time, *comm;

	if (!PyArg_ParseTuple(args, "sIIO", &name, &n_ranks, &rank, &time) ||
	    options_parse_time(time, &timeout_ms) < 0)
		return NULL;
	link = client_use(client);
	if (!link)
		return NULL;
	comm = join(link, name, n_ranks, rank,
		    timeout_ms < 0 ? INT32_MAX : timeout_ms);
	link_drop(link);
	return comm;
}

static int leave(void *comm)
{
	return fsdp_comm_leave(comm);
}

static PyObject *comm_leave(PyObject *self, PyObject *none)
{
	struct comm *comm = (struct comm *)self;
	struct fsdp_comm *left = comm->comm;
	int r;

	(void)none;
	if (!left || link_is_left_open())
		Py_RETURN_NONE;
	if (atomic_exchange(&comm->is_busy, true))
		return errors_raise_text(-EBUSY,
					 "another thread is in a call of the "
					 "communicator; abort() ends it");
	comm->comm = NULL;
	r = link_end(comm->link, leave, left);
	link_drop(comm->link);
	atomic_store(&comm->is_busy, false);
	/* a forked child is not a rank, so it succeeds */
	if (r < 0 && r != -ECHILD)
		return errors_raise(r);
	Py_RETURN_NONE;
}

static PyObject *comm_abort(PyObject *self, PyObject *none)
{
	(void)none;
	atomic_store(&((struct comm *)self)->is_aborted, true);
	Py_RETURN_NONE;
}

static void comm_dealloc(PyObject *self)
{
	PyTypeObject *type = Py_TYPE(self);
	PyObject *error, *value, *trace, *left;

	PyErr_Fetch(&error, &value, &trace);
	left = comm_leave(self, NULL);
	if (!left)
		PyErr_WriteUnraisable(NULL);
	Py_XDECREF(left);
	PyErr_Restore(error, value, trace);
	PyObject_Free(self);
	Py_DECREF(type);
}

/* --- the type ------------------------------------------------------------- */

static PyMethodDef methods[] = {
	{"broadcast", comm_broadcast, METH_VARARGS,
	 "broadcast(dtype, address, count, root)"},
	{"all_reduce", comm_all_reduce, METH_VARARGS,
	 "all_reduce(dtype, how, input, output, count)"},
	{"reduce", comm_reduce, METH_VARARGS,
	 "reduce(dtype, how, input, output, count, root)"},
	{"all_gather", comm_all_gather, METH_VARARGS,
	 "all_gather(dtype, input, count, outputs)"},
	{"gather", comm_gather, METH_VARARGS,
	 "gather(dtype, input, count, outputs, root)"},
	{"scatter", comm_scatter, METH_VARARGS,
	 "scatter(dtype, inputs, output, count, root)"},
	{"reduce_scatter", comm_reduce_scatter, METH_VARARGS,
	 "reduce_scatter(dtype, how, inputs, output, count)"},
	{"all_to_all", comm_all_to_all, METH_VARARGS,
	 "all_to_all(dtype, inputs, outputs)"},
	{"barrier", comm_barrier, METH_O, "barrier(timeout)"},
	{"send", transfer_send, METH_VARARGS,
	 "send(dtype, address, count, rank, tag): a Transfer"},
	{"receive", transfer_receive, METH_VARARGS,
	 "receive(dtype, address, count, rank, tag): a Transfer; rank None is\n"
	 "any"},
	{"leave", comm_leave, METH_NOARGS, "leave()"},
	{"abort", comm_abort, METH_NOARGS,
	 "abort(): a call of another thread returns soon, and all calls fail"},
	{NULL, NULL, 0, NULL},
};

static PyType_Slot slots[] = {
	{Py_tp_dealloc, comm_dealloc},
	{Py_tp_methods, methods},
	{0, NULL},
};

int comm_add(PyObject *module)
{
	comm_type = type_add(module, "fsdp._fsdp.Comm", sizeof(struct comm),
			     Py_TPFLAGS_DISALLOW_INSTANTIATION, slots);
	return comm_type ? transfer_add(module) : -1;
}
