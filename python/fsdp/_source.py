"""The arrays that put() takes: those of numpy and torch, and objects with the
buffer protocol or DLPack."""

import sys

from . import _fsdp
from ._dense import check_dense
from ._dtypes import name_of

#: Letters of Python's module struct, with the sizes of this machine.
_LETTERS = {
    "?": "bool",
    "e": "f16",
    "f": "f32",
    "d": "f64",
    "Zf": "c64",
    "Zd": "c128",
}


def _format_name(view):
    letter = view.format.lstrip("@=<>!")
    if view.format[0] in ">!" and view.itemsize > 1:
        raise BufferError("the buffer is big-endian; convert it first")
    if letter in _LETTERS:
        return _LETTERS[letter]
    if letter in "bhilqn" and len(letter) == 1:
        return f"i{8 * view.itemsize}"
    if letter in "BHILQNc" and len(letter) == 1:
        return f"u{8 * view.itemsize}"
    raise BufferError(f"there is no dtype for buffers of format {letter!r}")


def _is_of(module, kind, value):
    """Return whether it is an instance of this class. No module is imported for
    that."""
    module = sys.modules.get(module)
    return module is not None and isinstance(value, getattr(module, kind))


class Source:
    """An array with `shape`, `dtype` and copy_to(tensor)."""

    def __init__(self, shape, dtype, copy_to):
        self.shape, self.dtype, self.copy_to = tuple(shape), dtype, copy_to


def _of_numpy(array):
    import numpy

    if not array.dtype.isnative:
        array = array.astype(array.dtype.newbyteorder("="))

    def copy_to(tensor):
        if tensor.device == "host":
            numpy.copyto(tensor.numpy(), array)
        else:
            # It is copied as bytes, because buffers have no format for the
            # types of ml_dtypes.
            tensor.copy_from(numpy.ascontiguousarray(array).reshape(-1).view("u1"))

    return Source(array.shape, name_of(array.dtype), copy_to)


def _of_torch(value):
    check_dense(value, "copy")

    def copy_to(tensor):
        tensor.torch().copy_(value.detach())

    return Source(value.shape, name_of(value.dtype), copy_to)


def _of_tensor(value):
    view = memoryview(_fsdp.Bits(value))
    return Source(value.shape, value.dtype, lambda to: to.copy_from(view))


def _of_buffer(value):
    view = memoryview(value)
    return Source(
        view.shape, _format_name(view), lambda tensor: tensor.copy_from(view)
    )


def source_of(value):
    """Return the Source of an array, without copying it."""
    if isinstance(value, _fsdp.Tensor):
        return _of_tensor(value)
    if _is_of("torch", "Tensor", value):
        return _of_torch(value)
    if _is_of("numpy", "ndarray", value):
        return _of_numpy(value)
    try:
        return _of_buffer(value)
    except TypeError:
        pass
    import numpy

    if hasattr(value, "__dlpack__"):
        return _of_numpy(numpy.from_dlpack(value))
    return _of_numpy(numpy.asarray(value))
