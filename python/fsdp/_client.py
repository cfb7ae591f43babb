"""Client: a connection to the broker."""

import os

from . import _fsdp
from ._dtypes import name_of
from ._source import source_of

# The default group of an allocation, as in fsdp.h.
_GID_DEFAULT = 0xFFFFFFFF


def _shape_of(shape):
    return (shape,) if isinstance(shape, int) else tuple(shape)


class Client(_fsdp.Client):
    """A connection to fsdpd; fsdp.connect() makes it.

    It is a context manager, and reads like a mapping of names to tensors. All
    methods may be called from any thread. After os.fork() the child needs a
    connection of its own.
    """

    def __init__(self, path=None, budget=0):
        path = os.fsdecode(path) if path is not None else None
        super().__init__(path, budget)
        self._path = path
        self._waits = {}

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __repr__(self):
        state = ", closed" if self.closed else ""
        return f"fsdp.Client({self._path!r}{state})"

    def __reduce__(self):
        raise TypeError("a connection cannot be pickled; connect in the receiver")

    # --- making tensors -------------------------------------------------------

    def alloc(self, shape, dtype=None, *, device=None, mode=0, gid=None, timeout=None):
        """Allocate a tensor to write to, and then to publish().

        With a list of (shape, dtype) it makes a list of tensors in one round
        trip. `mode` is like a file's (0o600 to 0o666), `gid` its group. If
        memory is short, it waits up to `timeout` seconds (None: for ever)
        until others release some; then it raises fsdp.NoRoom.
        """
        pairs = [(shape, dtype)] if dtype is not None else shape
        specs = [(_shape_of(shape), name_of(dtype)) for shape, dtype in pairs]
        gid = _GID_DEFAULT if gid is None else gid
        tensors = self._alloc(specs, device, mode, gid, timeout)
        return tensors[0] if dtype is not None else tensors

    def put(
        self,
        name,
        array,
        *,
        replace=True,
        evictable=False,
        tied=False,
        ttl=None,
        device=None,
        mode=0,
        timeout=None,
    ):
        """Copy an array into a new tensor and publish it; return the tensor.

        The array is numpy's, torch's, anything with the buffer protocol or
        DLPack, or what numpy.asarray() takes. For the keywords see alloc() and
        Tensor.publish().
        """
        source = source_of(array)
        tensor = self.alloc(
            source.shape, source.dtype, device=device, mode=mode, timeout=timeout
        )
        source.copy_to(tensor)
        tensor.publish(name, replace=replace, evictable=evictable, tied=tied, ttl=ttl)
        return tensor

    def redeem(self, ticket):
        """The tensor that a ticket is for, held."""
        return self._redeem(ticket)

    def remove(self, names):
        """Remove a name, or several at once; who holds a tensor keeps it."""
        self._remove([names] if isinstance(names, str) else names)

    async def aget(self, name, **options):
        """get() for asyncio: it waits without a thread."""
        from ._asyncio import aget

        return await aget(self, name, options)

    # --- looking --------------------------------------------------------------

    def names(self, prefix=None):
        """The names that begin with the prefix, sorted."""
        return sorted(entry["name"] for entry in self._list(prefix))

    def entries(self, prefix=None):
        """The same with what the broker knows of each: a list of dicts."""
        return sorted(self._list(prefix), key=lambda entry: entry["name"])

    def who(self, name):
        """The processes that hold the tensor of this name: a list of dicts."""
        return self._who(name)

    def status(self):
        """The broker's counters: a dict; "note" has its warnings."""
        counters, note = self._status()
        counters["note"] = note
        return counters
