"""fsdp for torch: Tensor.torch(), and install() for torch.multiprocessing.

>>> import fsdp, fsdp.torch, torch
>>> fsdp.default().put("demo/x", torch.arange(4)).torch()
tensor([0, 1, 2, 3])
"""

import faulthandler
from multiprocessing.reduction import ForkingPickler

import torch
import torch.multiprocessing  # Its reducers first: install() replaces one.

from . import _fsdp
from ._batch import storage_of
from ._default import default
from ._dtypes import LONG_NAMES
from ._loader import DataLoader as DataLoader
from ._pack import pack as pack
from ._private import memory_of
from ._tensor import capsule_of_bits, capsule_of_bytes

# What some version of torch cannot take by DLPack, but view.
_BY_BITS = ("bool", "f8_e4m3", "f8_e5m2")


_DTYPES = {name: getattr(torch, long, None) for name, long in LONG_NAMES.items()}
# dlpack.from_dlpack() looks first for what a capsule never has.
_from_dlpack = torch._C._from_dlpack


def _torch_dtype(name):
    dtype = _DTYPES[name]
    if dtype is None:
        raise BufferError(
            f"torch {torch.__version__} has no {LONG_NAMES[name]}; install a later one"
        )
    return dtype


def _watch():
    """Name the tensor and the line if somebody writes to read-only memory."""
    if not faulthandler.is_enabled():
        try:
            faulthandler.enable()
        except (OSError, ValueError, RuntimeError, AttributeError):
            pass  # There is no stderr that it could write to.
    _fsdp.watch_faults()


def from_tensor(tensor, private=False):
    """Tensor.torch()."""
    name = tensor.dtype
    dtype = _torch_dtype(name)
    memory = memory_of(tensor) if private else None
    if memory is not None:
        return torch.frombuffer(memory, dtype=dtype).view(tensor.shape)
    _watch()
    if name in _BY_BITS:
        result = _from_dlpack(capsule_of_bits(tensor)).view(dtype)
    else:
        result = _from_dlpack(tensor._capsule(False, 0))
    return result.clone() if private else result


# --- torch.multiprocessing ----------------------------------------------------

_reduce_before = None


def _rebuild_storage(ticket):
    tensor = default().redeem(ticket)
    _watch()
    return storage_of(_from_dlpack(capsule_of_bytes(tensor)))


def _reduce_storage(storage):
    tensor = None
    if storage.device.type != "meta":
        tensor = _fsdp.find_export(storage.data_ptr(), storage.nbytes())
    if tensor is None:
        return _reduce_before(storage)
    return _rebuild_storage, (tensor.ticket(),)


def install():
    """Have torch's queues and loaders pass tensors of the broker on by ticket.

    What was got from the broker then costs a message of some hundred bytes,
    whatever its size, and its receiver maps the same memory, read-only. A
    ticket is for one receiver and a minute. All other tensors travel as before.
    Call it in the process that sends; one that only receives need not.
    """
    global _reduce_before
    if _reduce_before is None:
        _reduce_before = ForkingPickler._extra_reducers[torch.UntypedStorage]
        ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
