"""The methods of Tensor that are not in C, because they need not be fast."""

import errno

from . import _dtypes, _fsdp
from ._errors import make
from ._fsdp import Tensor
from ._private import memory_of
from ._time import milliseconds, seconds_to_ms

# Values of enum fsdp_publish_flags.
REPLACE, EVICTABLE, TIED, MUST_EXIST = 1, 2, 4, 8
# A value of enum fsdp_bundle_flags.
ONCE = 16

# Forms of capsules (dlpack_capsule()).
_AS_IS, _AS_BITS, _AS_BYTES = 0, 1, 2


def _method(function):
    """Make the function a method of Tensor."""
    function.__qualname__ = f"Tensor.{function.__name__}"
    setattr(Tensor, function.__name__, function)
    return function


def check_name(name):
    """Refuse an empty name, which the library takes for none."""
    if name == "":
        raise make(
            errno.EINVAL,
            "a name is empty; it needs 1 to 255 bytes, and None publishes without one",
        )


def publication_flags(replace, evictable, tied):
    """Return the flags for these keyword arguments of publish() and put()."""
    return (
        (REPLACE if replace else 0)
        | (EVICTABLE if evictable else 0)
        | (TIED if tied else 0)
    )


@_method
def publish(
    self,
    name=None,
    *,
    replace=False,
    evictable=False,
    tied=False,
    ttl=None,
    stream=None,
):
    """Publish the tensor under a name, and return the name's version, from 1.

    Afterwards it may only be read. `replace`: the name may exist, and drops its
    old tensor. `tied`: the name ends with this connection. `evictable`: the
    broker may drop it when memory is short. `ttl`: seconds until the name is
    removed. `stream`: a CUDA stream (an int) that still writes. Without a name
    only holds and tickets keep the tensor.
    """
    check_name(name)
    flags = publication_flags(replace, evictable, tied)
    return self._publish(name, flags, seconds_to_ms(ttl), stream or 0)


@_method
def ticket(self, uses=1, ttl=60):
    """Return 16 secret bytes by which other processes get the tensor, `uses`
    times and within `ttl` seconds; see fsdp.redeem()."""
    return self._ticket(uses, seconds_to_ms(ttl))


@_method
def view(self, shape, dtype=None, strides=None, offset=0):
    """Return a second tensor on the same memory, which can be published on its
    own. `strides` are in elements, `offset` is in bytes."""
    name = self.dtype if dtype is None else _dtypes.name_of(dtype)
    return self._view(tuple(shape), name, strides, offset)


@_method
def wait(self, stream=None, timeout=None):
    """Make a CUDA stream (None: this thread) wait until a tensor on a device is
    complete."""
    self._wait(stream or 0, milliseconds(timeout))


# --- numpy --------------------------------------------------------------------


@_method
def numpy(self, *, private=False):
    """Return the elements as a numpy array, without a copy.

    It is read-only once the tensor is published, and keeps the memory by a hold
    of its own. bf16 and the 8-bit floats need the package ml_dtypes. `private`:
    the caller may change the array; of tensors of a bundle only the pages that
    it writes are copied, other tensors are copied as a whole.
    """
    import numpy

    memory = memory_of(self) if private else None
    if memory is not None:
        dtype = _dtypes.numpy_dtype(self.dtype)
        return numpy.frombuffer(memory, dtype).reshape(self.shape)
    if self.dtype in _dtypes.EXTENDED:
        dtype = _dtypes.numpy_dtype(self.dtype)
        array = numpy.asarray(memoryview(_fsdp.Bits(self))).view(dtype)
    else:
        array = numpy.asarray(memoryview(self))
    return array.copy() if private else array


@_method
def __array__(self, dtype=None, copy=None):
    array = self.numpy()
    if dtype is not None and array.dtype != dtype:
        if copy is False:
            raise ValueError(
                f"cannot give the tensor as {dtype} without a copy; it is {array.dtype}"
            )
        return array.astype(dtype)
    return array.copy() if copy else array


# --- torch and DLPack ---------------------------------------------------------


@_method
def torch(self, *, private=False):
    """Return the elements as a torch.Tensor, without a copy.

    Torch has no read-only tensors: a write to a published tensor ends the
    process, after a sentence that names the tensor. `private`: the caller may
    change the elements; of tensors of a bundle only the pages that it writes
    are copied, other tensors are copied as a whole.
    """
    import fsdp.torch  # `from ... import` would take 0.4 us more

    return fsdp.torch.from_tensor(self, private)


@_method
def __dlpack_device__(self):
    return _fsdp.dlpack_device(self)


@_method
def __dlpack__(self, *, stream=None, max_version=None, dl_device=None, copy=None):
    if copy:
        raise BufferError("fsdp makes no copies for DLPack; copy the result")
    device = self.__dlpack_device__()
    if dl_device is not None and tuple(dl_device) != device:
        raise BufferError(f"the tensor is on device {device}, not {dl_device}")
    # With -1 the consumer asks for no order. 1 and 2 are CUDA's default
    # streams, as in cuda.h.
    if device[0] != 1 and stream != -1:
        self._wait(stream or 1, -1)
    return self._capsule(max_version is not None and max_version[0] >= 1, _AS_IS)


# --- Python's own -------------------------------------------------------------


@_method
def __len__(self):
    if not self.shape:
        raise TypeError("a tensor of 0 dimensions has no len()")
    return self.shape[0]


@_method
def __repr__(self):
    name = f"{self.name!r}, version={self.version}, " if self.name else ""
    state = "" if self.held else ", released"
    return (
        f"fsdp.Tensor({name}shape={self.shape}, dtype={self.dtype!r}, "
        f"device={self.device!r}{state})"
    )


@_method
def _repr_html_(self):
    from html import escape

    rows = ("name", "version", "shape", "dtype", "nbytes", "device")
    cells = "".join(
        f"<tr><th>{row}</th><td>{escape(str(getattr(self, row)))}</td></tr>"
        for row in rows
    )
    return f"<table>{cells}</table>"


@_method
def __copy__(self):
    # This avoids __reduce__, which may make a ticket.
    return self


@_method
def __deepcopy__(self, memo):
    raise TypeError("a tensor cannot be copied; use numpy().copy() or put()")


@_method
def __reduce__(self):
    """A tensor with a name is pickled as the name and its identity. Any other tensor is
    pickled as a ticket for one process, which expires after a minute."""
    from ._pickle import redeem_pickled, reopen_pickled

    if self.name:
        return reopen_pickled, (self.name, self.version, self._id)
    return redeem_pickled, (self.ticket(),)


def capsule_of_bits(tensor):
    """Return a capsule of the elements as unsigned integers of the same size."""
    return tensor._capsule(False, _AS_BITS)


def capsule_of_bytes(tensor):
    """Return a capsule of all bytes of the tensor in one dimension."""
    return tensor._capsule(False, _AS_BYTES)
