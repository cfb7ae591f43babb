"""A channel passes objects from producers to consumers through the broker's memory."""

import errno
import math
import pickle
import sys
from collections.abc import Sequence

from ._bundle import shape_of
from ._dtypes import name_of, numpy_dtype
from ._errors import Ended, Error, Gone, Invalid, Lagged, ProducerDied
from ._fsdp import fill_item, size_of_item, split_item

ROLES = {"producer": 1, "consumer": 2}  # enum fsdp_channel_role
MODES = {"queue": 0, "broadcast": 1}  # enum fsdp_channel_mode

_ALIGN = 64  # of the pieces of an item; python/module/pieces.h has the format
_INLINE = 1024  # bytes; smaller arrays are in the pickle


def _aligned(size):
    return -(-size // _ALIGN) * _ALIGN


# --- tensors of torch ---------------------------------------------------------


def _bytes_of(tensor):
    """Return the elements as an array of bytes, which is a view if possible."""
    import torch

    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.reshape(-1).view(torch.uint8).numpy()


def _rebuild(buffer, dtype, shape):
    import torch

    buffer = memoryview(buffer)
    if buffer.readonly:
        buffer = bytearray(buffer)  # torch has no read-only tensors
    if not len(buffer):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(buffer, dtype=dtype).view(shape)


class _Pickler(pickle.Pickler):
    """Puts the elements of tensors beside the pickle. numpy does so for its arrays."""

    def reducer_override(self, thing):
        torch = sys.modules.get("torch")
        if torch is None or type(thing) is not torch.Tensor or thing.requires_grad:
            return NotImplemented
        if thing.device.type != "cpu" or thing.layout is not torch.strided:
            return NotImplemented
        if thing.is_quantized or thing.is_nested:
            return NotImplemented
        piece = pickle.PickleBuffer(_bytes_of(thing))
        return _rebuild, (piece, thing.dtype, tuple(thing.shape))


class _Parts(list):
    """A file for a pickler, which keeps the written parts without another copy."""

    write = list.append


def _pieces_of(thing, is_filled=False):
    """Return the pieces of an item. If `is_filled`, it is a slab, whose memory
    is the only piece beside the pickle."""
    file, pieces = _Parts(), []

    # This is not a method of the pickler, because that would be a cycle, which
    # keeps the arrays.
    def is_inline(piece):
        piece = piece.raw()
        # Copying a few bytes once more is cheaper than a piece.
        if pieces if is_filled else piece.nbytes < _INLINE:
            return True
        pieces.append(piece)
        return False

    _Pickler(file, 5, buffer_callback=is_inline).dump(thing)
    return [*pieces, b"".join(file)]


def size_of(thing):
    """Return the bytes of the item that put() would send."""
    return size_of_item(_pieces_of(thing))


# --- the classes that users see -----------------------------------------------


def _as(kind, error):
    """Return the error as another class, for channels."""
    named = kind(*error.args)
    named.errno = error.errno
    return named


def _arrays(buffer, specs):
    import numpy

    # Unlike those of numpy.ndarray(buffer=), its arrays count as views of the
    # item.
    memory = numpy.frombuffer(buffer, "u1")
    at, arrays = 0, []
    for shape, dtype in specs:
        size = math.prod(shape) * dtype.itemsize
        arrays.append(memory[at : at + size].view(dtype).reshape(shape))
        at = _aligned(at + size)
    return arrays


class _Filled:
    """Is pickled as the arrays. Their memory is in the item already."""

    def __init__(self, memory, specs):
        self._memory, self._specs = memory, specs

    def __reduce__(self):
        return _arrays, (pickle.PickleBuffer(self._memory), self._specs)


class Slab(Sequence):
    """Arrays of numpy in a free buffer of a channel; Channel.alloc() makes it.

    Fill them, as in slab[0][:] = 1, and send() them. A slab that is dropped
    gives the buffer back.
    """

    def __init__(self, channel, item, specs, size):
        self._channel, self._item = channel, item
        self._specs, self._end = specs, size
        self._show()

    def __getitem__(self, index):
        return self._arrays[index]

    def __len__(self):
        return len(self._arrays)

    def __repr__(self):
        noun = "array" if len(self) == 1 else "arrays"
        return f"fsdp.Slab({self._channel.name!r}, {len(self)} {noun})"

    def _show(self):
        memory = memoryview(self._item)[_ALIGN : self._end]
        self._arrays = _arrays(memory, self._specs)

    def _fill(self, meta):
        memory = memoryview(self._item)
        filled = _Filled(memory[_ALIGN : self._end], self._specs)
        pieces = _pieces_of((filled, meta), is_filled=True)
        size = size_of_item(pieces)
        if size > len(memory):
            raise self._channel._too_large(size)
        fill_item(memory, pieces, 1)

    def send(self, meta=None):
        """Send the arrays. get() returns a list of them and `meta`, any object.

        Only `meta` is copied. The arrays and their views must be gone, except
        those of the slab. If not, BufferError is raised, and the slab can be
        sent later. After it was sent, the slab is empty.
        """
        if self._item is None:
            raise Invalid("the slab was sent; Channel.alloc() makes another one")
        self._arrays = []
        try:
            self._fill(meta)
            self._item.send()
        except BaseException:
            self._show()
            raise
        self._item = None


class Channel:
    """A stream of objects from producers to consumers; Client.channel() opens
    it.

    The objects that a producer puts are pickled directly into one of the
    channel's buffers, and a consumer's arrays and tensors are views of that
    memory. So the elements are copied once (those of arrays below 1 KiB twice).
    The producer gets the buffer back when the last view is gone. A channel is
    for processes that trust each other: unpickling can run code.
    """

    def __init__(self, port, name, role):
        self._port = port
        self._waits = {}  # by event loop
        self.name = name
        self.role = role

    def put(self, thing, timeout=None):
        """Send an object. Wait up to `timeout` seconds for a free buffer.

        Raises fsdp.Timeout; fsdp.Left if all consumers have gone; fsdp.Invalid
        if the object is larger than the channel's capacity.
        """
        self._send(_pieces_of(thing), timeout)

    def alloc(self, specs, timeout=None):
        """Return a Slab, a free buffer to fill in place and then to send. It is
        a sequence with an array for each (shape, dtype).

        put() copies arrays into the buffer; this saves that copy. It waits and
        raises as put() does.
        """
        specs = [(shape_of(shape), numpy_dtype(name_of(dtype))) for shape, dtype in specs]
        for shape, _ in specs:
            if any(n < 0 for n in shape):
                raise Invalid(f"the shape {shape} has a dimension below 0; give its size")
        size = _ALIGN + sum(
            _aligned(math.prod(shape) * dtype.itemsize) for shape, dtype in specs
        )
        capacity = self.info()["capacity"]
        if size > capacity:
            raise self._too_large(size)
        return Slab(self, self._port.begin(capacity, timeout), specs, size)

    def _too_large(self, size):
        return Invalid(
            f"cannot put an item of {size} bytes in channel {self.name!r}, whose "
            f"capacity is {self.info()['capacity']}; open it with a larger one"
        )

    def _send(self, pieces, timeout):
        size = size_of_item(pieces)
        try:
            item = self._port.begin(size, timeout)
        except Invalid as error:
            if error.errno != errno.ERANGE:
                raise
            raise self._too_large(size) from None
        fill_item(item, pieces, 0)
        item.send()

    def get(self, timeout=None):
        """Receive the oldest object. Wait up to `timeout` seconds for one.

        Its arrays and tensors may be changed in place if the sent ones could be
        changed. In a broadcast, arrays that show the channel's memory are
        read-only, and tensors are copies.

        Raises fsdp.Timeout; fsdp.Ended when all producers have ended and
        everything is received; fsdp.ProducerDied once for each producer that
        died, after all objects that it had sent; fsdp.Lagged if this consumer
        was cut.
        """
        try:
            item = self._port.receive(timeout)
        except Gone as error:
            raise _as(ProducerDied, error) from None
        except Error as error:
            if error.errno != errno.EOVERFLOW:
                raise
            raise _as(Lagged, error) from None
        *pieces, pickled = split_item(item)
        return pickle.loads(pickled, buffers=pieces)

    def fileno(self):
        """Return a descriptor for select, poll and event loops.

        It becomes readable when get(), or put() of a producer, may not have to
        wait, and stays so until one of them raises fsdp.Timeout with timeout=0.
        It is closed with the channel; do not read or close it.
        """
        return self._port.fileno()

    async def aput(self, thing, timeout=None):
        """put() for asyncio. It waits without a thread."""
        from ._asyncio import repeat

        pieces = _pieces_of(thing)
        await repeat(self, lambda: self._send(pieces, 0), timeout)

    async def aget(self, timeout=None):
        """get() for asyncio. A task that is cancelled takes no object."""
        from ._asyncio import repeat

        return await repeat(self, lambda: self.get(0), timeout)

    def __aiter__(self):
        return self

    async def __anext__(self):
        try:
            return await self.aget()
        except Ended:
            raise StopAsyncIteration from None

    def __iter__(self):
        return self

    def __next__(self):
        try:
            return self.get()
        except Ended:
            raise StopIteration from None

    def end(self):
        """Declare that this producer puts nothing more."""
        self._port.end()

    def info(self):
        """Return a dict of the capacity, the credits, the mode, and the numbers
        of queued objects, producers and consumers."""
        return self._port.info()

    def resize(self, credits, timeout=None):
        """Give the channel this many buffers, 1 to 64, while it is used.

        The call waits up to `timeout` seconds for memory. If there is too
        little, it raises fsdp.NoRoom and the number stays as it was. If the
        number becomes smaller, buffers leave the channel when they are free,
        and no object is lost.
        """
        self._port.resize(credits, timeout)

    def _end_unless_filling(self):
        try:
            self._port.end()
        except Error as error:
            if error.errno != errno.EBUSY:  # it still has slabs
                raise

    @property
    def closed(self):
        """True after close()."""
        return self._port.closed

    def close(self):
        """Leave the channel. Received objects stay as long as they are used.

        A producer that still has slabs ends when the last of them is gone.
        """
        try:
            # Otherwise the channel is closed now, which ends a producer.
            if self.role == "producer" and self._port.shared:
                self._end_unless_filling()
        finally:
            self._port.close()
            if self._waits:
                from ._asyncio import wake

                wake(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        state = ", closed" if self.closed else ""
        return f"fsdp.Channel({self.name!r}, {self.role!r}{state})"

    def __reduce__(self):
        raise TypeError("a channel cannot be pickled; open it in the receiver")
