#include "dlpack.h"
#include "dlpack_abi.h"
#include "errors.h"
#include "range.h"
#include "tensor.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* --- exports -------------------------------------------------------------- */

enum form { FORM_TENSOR, FORM_BITS, FORM_BYTES };

struct export
{
	union {
		struct dl_managed managed;
		struct dl_versioned versioned;
	};
	struct handle *handle;
	struct range *range;
	int64_t shape[FSDP_MAX_DIMS], strides[FSDP_MAX_DIMS];
};

/* This may run on any thread, and after the interpreter has ended, so it must
 * not call Python. */
static void export_end(struct export *export)
{
	if (!export)
		return;
	range_end(export->range);
	handle_unexport(export->handle);
	free(export);
}

static void delete_managed(struct dl_managed *managed)
{
	export_end((struct export *)managed);
}

static void delete_versioned(struct dl_versioned *versioned)
{
	export_end((struct export *)versioned);
}

static const struct dl_dtype dtypes[] = {
	[FSDP_BOOL] = {CODE_BOOL, 8, 1},
	[FSDP_U8] = {CODE_UINT, 8, 1},
	[FSDP_I8] = {CODE_INT, 8, 1},
	[FSDP_U16] = {CODE_UINT, 16, 1},
	[FSDP_I16] = {CODE_INT, 16, 1},
	[FSDP_U32] = {CODE_UINT, 32, 1},
	[FSDP_I32] = {CODE_INT, 32, 1},
	[FSDP_U64] = {CODE_UINT, 64, 1},
	[FSDP_I64] = {CODE_INT, 64, 1},
	[FSDP_F16] = {CODE_FLOAT, 16, 1},
	[FSDP_BF16] = {CODE_BFLOAT, 16, 1},
	[FSDP_F32] = {CODE_FLOAT, 32, 1},
	[FSDP_F64] = {CODE_FLOAT, 64, 1},
	[FSDP_F8_E4M3] = {CODE_F8_E4M3FN, 8, 1},
	[FSDP_F8_E5M2] = {CODE_F8_E5M2, 8, 1},
	[FSDP_C64] = {CODE_COMPLEX, 64, 1},
	[FSDP_C128] = {CODE_COMPLEX, 128, 1},
};

static int dtype_of(const struct fsdp_info *info, struct dl_dtype *ret)
{
	/* libfsdp may be newer than this package, and have more dtypes. */
	if ((size_t)info->dtype >= sizeof(dtypes) / sizeof(*dtypes)) {
		errors_raise_text(-EOPNOTSUPP,
				  "this version of the package has no DLPack "
				  "dtype for %s; update it",
				  fsdp_dtype_name(info->dtype));
		return -1;
	}
	*ret = dtypes[info->dtype];
	return 0;
}

/* Searches for the ordinal of a device in this process. */
struct search {
	struct fsdp_device device;
	int32_t ordinal;
};

static int find_device(const struct fsdp_device_entry *entry, void *data)
{
	struct search *search = data;

	if (memcmp(&entry->device, &search->device, sizeof(entry->device)))
		return 0;
	search->ordinal = entry->ordinal;
	return 1;
}

static int device_of(const struct fsdp_info *info, struct dl_device *ret)
{
	struct search search = {.device = info->device};
	int r;

	*ret = (struct dl_device){DEVICE_CPU, 0};
	if (!handle_is_on_device(info))
		return 0;
	r = fsdp_devices(find_device, &search);
	if (r <= 0) {
		errors_raise_text(r < 0 ? r : -ENODEV,
				  "this process does not see the tensor's "
				  "device; check CUDA_VISIBLE_DEVICES");
		return -1;
	}
	*ret = (struct dl_device){DEVICE_CUDA, search.ordinal};
	return 0;
}

/* Describes all bytes of the tensor, even those between its elements. */
static void fill_bytes(struct export *export, const struct fsdp_info *info,
		       struct dl_tensor *ret)
{
	export->shape[0] = (int64_t)info->size;
	export->strides[0] = 1;
	ret->n_dims = 1;
	ret->dtype = (struct dl_dtype){CODE_UINT, 8, 1};
}

static int fill(struct export *export, const struct view *view, enum form form,
		struct dl_tensor *ret)
{
	const struct fsdp_info *info = &view->info;

	*ret = (struct dl_tensor){
		.data = info->size ? view->data : NULL,
		.n_dims = (int32_t)info->n_dims,
		.shape = export->shape,
		.strides = export->strides,
	};
	memcpy(export->shape, info->shape, sizeof(export->shape));
	memcpy(export->strides, info->strides, sizeof(export->strides));
	if (dtype_of(info, &ret->dtype) < 0)
		return -1;
	if (form == FORM_BITS)
		ret->dtype.code = CODE_UINT;
	else if (form == FORM_BYTES)
		fill_bytes(export, info, ret);
	return device_of(info, &ret->device);
}

static int fill_capsule(struct export *export, const struct view *view,
			enum form form, bool is_versioned)
{
	if (!is_versioned) {
		export->managed =
			(struct dl_managed){.deleter = delete_managed};
		return fill(export, view, form, &export->managed.tensor);
	}
	export->versioned = (struct dl_versioned){
		.major = 1,
		.deleter = delete_versioned,
		.flags = view->is_writable ? 0 : FLAG_READ_ONLY,
	};
	return fill(export, view, form, &export->versioned.tensor);
}

/* Returns NULL with an exception set on failure. */
static struct export *export_new(struct handle *handle, enum form form,
				 bool is_versioned)
{
	struct export *export = calloc(1, sizeof(*export));
	struct view view;
	int r;

	if (!export)
		return (void *)PyErr_NoMemory();
	r = handle_export(handle);
	if (r < 0) {
		free(export);
		return errors_raise(r);
	}
	export->handle = handle;
	r = handle_view(handle, true, &view);
	if (r < 0)
		errors_raise(r);
	else
		r = fill_capsule(export, &view, form, is_versioned);
	if (r < 0) {
		export_end(export);
		return NULL;
	}
	if (view.info.size)
		export->range = range_new(handle, &view);
	return export;
}

/* --- capsules ------------------------------------------------------------- */

static const char versioned_name[] = "dltensor_versioned";

/* A consumer renames the capsule, and then calls the deleter itself. */
static void capsule_end(PyObject *capsule)
{
	if (PyCapsule_IsValid(capsule, DL_LEGACY_NAME))
		export_end(PyCapsule_GetPointer(capsule, DL_LEGACY_NAME));
	else if (PyCapsule_IsValid(capsule, versioned_name))
		export_end(PyCapsule_GetPointer(capsule, versioned_name));
}

PyObject *dlpack_capsule(PyObject *self, PyObject *args)
{
	struct export *export;
	int is_versioned, form;
	PyObject *capsule;

	if (!PyArg_ParseTuple(args, "pi", &is_versioned, &form))
		return NULL;
	export = export_new(((struct tensor *)self)->handle, (enum form)form,
			    is_versioned);
	if (!export)
		return NULL;
	capsule = PyCapsule_New(export,
				is_versioned ? versioned_name : DL_LEGACY_NAME,
				capsule_end);
	if (!capsule)
		export_end(export);
	return capsule;
}

PyObject *dlpack_device(PyObject *module, PyObject *object)
{
	struct tensor *tensor = tensor_of(object);
	struct fsdp_info info = {.struct_size = sizeof(info)};
	struct dl_device device;
	int r;

	(void)module;
	if (!tensor)
		return NULL;
	r = fsdp_tensor_info(tensor->handle->tensor, &info);
	if (r < 0)
		return errors_raise(r);
	return device_of(&info, &device) < 0
		       ? NULL
		       : Py_BuildValue("(ii)", device.type, device.id);
}
