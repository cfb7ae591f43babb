"""Batches as messages, which the workers of fsdp.torch.DataLoader send.

A message has a head, the memory of the batch's tensors and arrays in pieces, a
table of the pieces, and a pickle of everything else, which refers to the
pieces. Tensors keep their strides, and share memory as before. Objects that are
not plain tensors or arrays are pickled as torch.multiprocessing does it.

Batches of tensors, numbers and strings that default_collate() makes need
neither a table nor a pickle: python/module/plain.h describes their messages.
"""

import ctypes
import io
import pickle
import struct
import sys
from multiprocessing.reduction import ForkingPickler

import torch
from torch.utils.dlpack import from_dlpack, to_dlpack

from ._fsdp import read_plain

ALIGN = 64  # of each piece
FIRST = ALIGN  # the smallest offset of a piece
# offset of the table, number of pieces, bytes of the pickle
_HEAD = struct.Struct("<QQQ")
# offset in the message, size, offset in its storage
_PIECE = struct.Struct("<QQQ")
_PLAIN = 2**64 - 1  # in place of the number of pieces: a plain batch
_SMALL = 1024  # smaller arrays (in bytes) are pickled by numpy


def aligned(size):
    return -(-size // ALIGN) * ALIGN


# DLPack's code and bits of each dtype that plain batches can have.
_CODES = {
    torch.uint8: (1, 8),
    torch.int8: (0, 8),
    torch.int16: (0, 16),
    torch.int32: (0, 32),
    torch.int64: (0, 64),
    torch.float16: (2, 16),
    torch.float32: (2, 32),
    torch.float64: (2, 64),
    torch.bfloat16: (4, 16),
    torch.bool: (6, 8),
}
_RECORD = struct.Struct("<QBBHI")  # struct plain_tensor


try:
    from_dlpack(to_dlpack(torch.ones(1, dtype=torch.bool)))
except RuntimeError:  # torch before 2
    del _CODES[torch.bool]


if hasattr(torch.Tensor, "untyped_storage"):
    storage_of = torch.Tensor.untyped_storage
else:  # torch before 2

    def storage_of(tensor):
        return tensor.storage()._storage


# --- writing ------------------------------------------------------------------


def record_of(at, shape, dtype):
    """Return the record of a tensor in a plain batch, with its tag, or None if
    its dtype cannot be in one."""
    if dtype not in _CODES:
        return None
    head = _RECORD.pack(at, *_CODES[dtype], 1, len(shape))
    return b"x" + head + struct.pack(f"<{len(shape)}q", *shape)


class Piece:
    """The bytes from `begin` to `end` of a storage at `address`. `at` is their
    offset in the message, if they are there already. If not, `owner` keeps them
    until they are copied."""

    def __init__(self, owner, address, begin, end, at=None):
        self.owner, self.address = owner, address
        self.begin, self.end, self.at = begin, end, at


def is_plain(tensor):
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and tensor.device.type == "cpu"
        and not (tensor.requires_grad or tensor.is_quantized or tensor.is_nested)
    )


def _extent(tensor):
    """Return the bytes of its storage that a tensor shows, from a multiple of ALIGN."""
    size = tensor.element_size()
    begin = tensor.storage_offset() * size
    end = begin
    if tensor.numel():
        steps = zip(tensor.shape, tensor.stride())
        end += size * (1 + sum((n - 1) * step for n, step in steps))
    begin = begin // ALIGN * ALIGN
    return begin, max(begin, end)


class _Pickler(ForkingPickler):
    def __init__(self, file, placed):
        super().__init__(file)
        self.placed = placed
        self.pieces, self.numbers = [], {}
        self.array_type = getattr(sys.modules.get("numpy"), "ndarray", None)

    def number_of(self, piece):
        """Return the number of the piece with this storage, which is extended
        to cover both."""
        number = self.numbers.setdefault(piece.address, len(self.pieces))
        if number == len(self.pieces):
            self.pieces.append(piece)
        else:
            known = self.pieces[number]
            known.begin = min(known.begin, piece.begin)
            known.end = max(known.end, piece.end)
        return number

    def reduce_tensor(self, tensor):
        tensor = tensor.resolve_conj().resolve_neg()
        piece, offset = self.placed.get(tensor.data_ptr()), 0
        if piece is None or piece.end != tensor.numel() * tensor.element_size():
            storage, offset = storage_of(tensor), tensor.storage_offset()
            piece = Piece(storage, storage.data_ptr(), *_extent(tensor))
        where = offset, tuple(tensor.shape), tensor.stride()
        return make_tensor, (self.number_of(piece), tensor.dtype, *where)

    def reduce_array(self, array):
        address = array.__array_interface__["data"][0]
        number = self.number_of(Piece(array, address, 0, array.nbytes))
        order = "C" if array.flags.c_contiguous else "F"
        return make_array, (number, array.dtype, array.shape, order)

    def reducer_override(self, thing):
        if isinstance(thing, torch.Tensor):
            return self.reduce_tensor(thing) if is_plain(thing) else NotImplemented
        if type(thing) is not self.array_type or thing.nbytes < _SMALL:
            return NotImplemented
        if thing.dtype.hasobject or not thing.flags.forc:
            return NotImplemented
        return self.reduce_array(thing)


class Message:
    """A batch that can be written to memory of `size` bytes.

    `placed` maps the address of each piece that is in the message already to
    the piece; `at` is the offset after them.
    """

    def __init__(self, batch, placed=(), at=FIRST):
        file = io.BytesIO()
        pickler = _Pickler(file, dict(placed))
        pickler.dump(batch)
        self._pickle, self._pieces = file.getbuffer(), pickler.pieces
        self._to_copy = [piece for piece in self._pieces if piece.at is None]
        for piece in self._to_copy:
            piece.at, at = at, aligned(at + piece.end - piece.begin)
        self._table = at
        self.size = at + _PIECE.size * len(self._pieces) + len(self._pickle)

    def write(self, view, address):
        """Write the message to a memoryview of the memory at this address."""
        sizes = len(self._pieces), len(self._pickle)
        _HEAD.pack_into(view, 0, self._table, *sizes)
        for piece in self._to_copy:
            source = piece.address + piece.begin
            ctypes.memmove(address + piece.at, source, piece.end - piece.begin)
        at = self._table
        for piece in self._pieces:
            _PIECE.pack_into(
                view, at, piece.at, piece.end - piece.begin, piece.begin
            )
            at += _PIECE.size
        view[at : at + len(self._pickle)] = self._pickle


# --- reading ------------------------------------------------------------------


def make_tensor(*_):
    """Stands in a pickle for the method of _Memory."""
    raise TypeError("a batch is read by fsdp._batch.read()")


def make_array(*_):
    """Stands in a pickle for the method of _Memory."""
    raise TypeError("a batch is read by fsdp._batch.read()")


class _Reader(pickle.Unpickler):
    def __init__(self, view):
        at, n, size = _HEAD.unpack_from(view)
        end = at + n * _PIECE.size
        self.memory = _Memory(view, list(_PIECE.iter_unpack(view[at:end])))
        super().__init__(io.BytesIO(view[end : end + size]))

    def find_class(self, module, name):
        # The reader caches what it finds. A method of the reader itself would
        # make a cycle, which keeps the buffer until Python collects garbage.
        if module == __name__:
            return getattr(self.memory, name)
        return super().find_class(module, name)


class _Memory:
    """The objects to which the pickle of a message refers."""

    def __init__(self, view, pieces):
        self.view, self.pieces, self.storages = view, pieces, {}

    def storage(self, number):
        # Each piece has a storage of its own, so that torch.save() of one
        # tensor does not save the others.
        if number not in self.storages:
            at, size, _ = self.pieces[number]
            data = torch.frombuffer(self.view, dtype=torch.uint8, offset=at, count=size)
            self.storages[number] = storage_of(data)
        return self.storages[number]

    def make_tensor(self, number, dtype, offset, shape, strides):
        _, size, begin = self.pieces[number]
        if not size:
            return torch.empty_strided(shape, strides, dtype=dtype)
        # The tensor is not a view of another one: views share a count of
        # in-place changes, and autograd would refuse them.
        tensor = torch.empty(0, dtype=dtype)
        offset -= begin // tensor.element_size()
        return tensor.set_(self.storage(number), offset, shape, strides)

    def make_array(self, number, dtype, shape, order):
        import numpy

        at, size, _ = self.pieces[number]
        return numpy.ndarray(shape, dtype, self.view[at : at + size], order=order)


def size_of(view):
    """Return how many bytes the message in the memory has."""
    at, n, size = _HEAD.unpack_from(view)
    return at + size + (0 if n == _PLAIN else n * _PIECE.size)


def read(view):
    """Return the batch of a message. Its tensors and arrays are views of the
    memory, keep it, and can be changed in place."""
    batch = read_plain(view, from_dlpack)
    return _Reader(view).load() if batch is None else batch
