#include "type.h"

PyTypeObject *type_add(PyObject *module, const char *name, size_t size,
		       unsigned int flags, PyType_Slot *slots)
{
	PyType_Spec spec = {
		.name = name,
		.basicsize = (int)size,
		.flags = Py_TPFLAGS_DEFAULT | flags,
		.slots = slots,
	};
	PyObject *type = PyType_FromModuleAndSpec(module, &spec, NULL);

	if (type && PyModule_AddType(module, (PyTypeObject *)type) < 0)
		Py_CLEAR(type);
	return (PyTypeObject *)type;
}
