"""fsdp for torch: Tensor.torch(), and install() for torch.multiprocessing.

>>> import fsdp, fsdp.torch, torch
>>> fsdp.default().put("demo/x", torch.arange(4)).torch()
tensor([0, 1, 2, 3])
"""

import faulthandler
import threading
from multiprocessing.reduction import ForkingPickler

import torch
# this registers its reducers; install() replaces one
import torch.multiprocessing
from torch.utils import _pytree

from . import _fsdp
from ._batch import storage_of
from ._default import default
from ._dtypes import LONG_NAMES
from ._loader import DataLoader as DataLoader
from ._pack import pack as pack
from ._private import memory_of
from ._tensor import Tensor, capsule_of_bits, capsule_of_bytes

# The dtypes that some versions of torch cannot take by DLPack, but can view.
_BY_BITS = ("bool", "f8_e4m3", "f8_e5m2")


_DTYPES = {name: getattr(torch, long, None) for name, long in LONG_NAMES.items()}
# dlpack.from_dlpack() would first look for methods that a capsule does not
# have.
_from_dlpack = torch._C._from_dlpack


def _torch_dtype(name):
    dtype = _DTYPES[name]
    if dtype is None:
        raise BufferError(
            f"torch {torch.__version__} has no {LONG_NAMES[name]}; install a later one"
        )
    return dtype


def _watch():
    """Print the tensor and the line if the program writes to read-only memory."""
    if not faulthandler.is_enabled():
        try:
            faulthandler.enable()
        except (OSError, ValueError, RuntimeError, AttributeError):
            pass  # there is no stderr to which it could write
    _fsdp.watch_faults()


def from_tensor(tensor, private=False):
    """Implements Tensor.torch()."""
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


# --- copies to a device -------------------------------------------------------

# under way: an event, and the tensors that the copy reads
_copies, _copies_lock = [], threading.Lock()


def _keep_copied(event, leaves):
    with _copies_lock:
        # These are freed without the lock, since their end may call any code.
        before = list(_copies)
        _copies[:] = [copy for copy in before if not copy[0].query()]
        _copies.append((event, leaves))


def to(batch, device, non_blocking=True):
    """Move the tensors of a batch to a device. These are all objects, in lists,
    tuples and dicts, that have a method to() or are an fsdp.Tensor.

    If a copy does not block, torch keeps the source only if the memory is
    torch's own. So this keeps the sources of copies to a GPU until a later to()
    finds that the copy is complete. Copies to other devices block.
    """
    device = torch.device(device)
    # Other devices do not tell when a copy is complete.
    non_blocking = non_blocking and device.type == "cuda"
    leaves, form = _pytree.tree_flatten(batch)
    leaves = [one.torch() if isinstance(one, Tensor) else one for one in leaves]
    moved = [
        one.to(device, non_blocking=non_blocking) if hasattr(one, "to") else one
        for one in leaves
    ]
    if non_blocking:
        _keep_copied(torch.cuda.current_stream(device).record_event(), leaves)
    return _pytree.tree_unflatten(moved, form)


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
    """Make torch's queues and loaders send tensors of the broker as tickets.

    Such a tensor then costs a message of some hundred bytes, whatever its size,
    and its receiver maps the same memory, read-only. A ticket is valid for one
    receiver and a minute. All other tensors are sent as before. Call this in
    the process that sends; a process that only receives need not call it.
    """
    global _reduce_before
    if _reduce_before is None:
        _reduce_before = ForkingPickler._extra_reducers[torch.UntypedStorage]
        ForkingPickler.register(torch.UntypedStorage, _reduce_storage)
