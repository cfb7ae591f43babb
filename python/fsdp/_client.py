"""Client: a connection to the broker."""

import contextlib
import errno
import os

from . import _fsdp
from ._bundle import Bundle, Stage, shape_of
from ._channel import MODES, ROLES, Channel
from ._dtypes import name_of
from ._errors import Invalid, NotFound, make
from ._source import source_of
from ._tensor import MUST_EXIST, ONCE, check_name, publication_flags
from ._time import milliseconds, seconds_to_ms

# The default group of an allocation, as in fsdp.h.
_GID_DEFAULT = 0xFFFFFFFF


def _pairs_of(things):
    pairs = list(things) if hasattr(things, "__iter__") else [things]
    if all(isinstance(pair, (tuple, list)) and len(pair) == 2 for pair in pairs):
        return pairs
    raise TypeError(
        "alloc() takes a shape and a dtype, or a list of (shape, dtype); give the dtype"
    )


class Client(_fsdp.Client):
    """A connection to fsdpd; fsdp.connect() makes it.

    It is a context manager, and can be read like a mapping of names to tensors.
    All methods may be called from any thread. After os.fork() the child needs a
    connection of its own.
    """

    def __init__(self, path=None, budget=0, reconnect=10):
        path = os.fsdecode(path) if path is not None else None
        self._path = os.environ.get("FSDP_SOCKET") if path is None else path
        self._reconnect = reconnect
        self._waits = {}
        super().__init__(path, budget, reconnect)

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

        For a list of (shape, dtype) it makes a list of tensors in one round
        trip. `mode` is like a file's (0o600 to 0o666), and `gid` is its group.
        If memory is short, it waits up to `timeout` seconds (None: without
        limit) until other processes release some, and then raises fsdp.NoRoom.
        """
        pairs = [(shape, dtype)] if dtype is not None else _pairs_of(shape)
        specs = [(shape_of(shape), name_of(dtype)) for shape, dtype in pairs]
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
        """Copy an array into a new tensor, publish it, and return the tensor.

        The array can be numpy's or torch's, have the buffer protocol or DLPack,
        or be any value that numpy.asarray() takes. For the keywords see alloc()
        and Tensor.publish().
        """
        check_name(name)
        source = source_of(array)
        tensor = self.alloc(
            source.shape, source.dtype, device=device, mode=mode, timeout=timeout
        )
        source.copy_to(tensor)
        tensor.publish(name, replace=replace, evictable=evictable, tied=tied, ttl=ttl)
        return tensor

    def redeem(self, ticket, *, writable=False):
        """Return the tensor that a ticket is for, held.

        `writable` is for processes that write parts of one tensor, which has no
        name, and order their writes themselves. It raises fsdp.Denied if this
        process may not write to the memory.
        """
        return self._redeem(ticket, writable)

    def remove(self, names):
        """Remove a name, or several at once. Processes that hold a tensor keep it."""
        self._remove([names] if isinstance(names, str) else names)

    # --- bundles --------------------------------------------------------------

    def stage(
        self,
        name,
        *,
        replace=False,
        must_exist=False,
        tied=False,
        ttl=None,
        device=None,
        mode=0,
        gid=None,
        size=0,
        once=False,
        timeout=None,
        keep=1,
    ):
        """Begin a bundle, such as a model: tensors that become visible together.

        `name` ends in "/". `replace`: the bundle may exist; processes that hold
        the old version keep it. `must_exist`: it must exist. `size`: bytes of
        all members, if they are known, so that the members are adjacent.
        `once`: if another process stages this bundle with `once`, wait up to
        `timeout` seconds (None: without limit) until it has committed the
        bundle, which raises fsdp.Exists, or until it has given up or died.
        `keep`: that many versions, including this one, can be got by
        bundle(name, version=...); older ones end. For the other keywords see
        alloc() and Tensor.publish().

        >>> with c.stage("llama/") as b:            # doctest: +SKIP
        ...     b.alloc("w", (4096, 4096), "bf16").torch().copy_(w)
        """
        flags = publication_flags(replace, False, tied)
        flags |= (MUST_EXIST if must_exist else 0) | (ONCE if once else 0)
        gid = _GID_DEFAULT if gid is None else gid
        ttl_ms = seconds_to_ms(ttl)
        stage = self._stage(name, flags, ttl_ms, mode, gid, size, device, timeout, keep)
        return Stage(stage, name)

    def bundle(self, name, **options):
        """Get and hold all tensors of one version of a bundle. Return a Bundle.

        It is one request for any number of tensors. The keywords are those of
        get(), and `version`: wait for exactly this version, which may be an old
        one that is kept (see stage()); fsdp.Gone is raised if it is not kept
        any more. `newer_than` is the last version that is not wanted.
        """
        return Bundle(self, name, *self._bundle(name, **options))

    async def abundle(self, name, **options):
        """bundle() for asyncio. It waits without a thread."""
        from ._asyncio import abundle

        return await abundle(self, name, options)

    # --- channels -------------------------------------------------------------

    def channel(
        self,
        name,
        role="consumer",
        *,
        capacity=0,
        credits=8,
        mode="queue",
        access=0,
        timeout=None,
        lag=None,
    ):
        """Open a channel as "producer" or "consumer". Return a Channel.

        The first process that gives a capacity, in bytes of an item, makes the
        channel, with `credits` buffers of that size. The others give the same
        capacity, or none and wait until the channel exists. `timeout` is how
        many seconds to wait for that, or for memory (None: without limit). In a
        "queue" each object goes to one consumer, in a "broadcast" to all of
        them. In a broadcast, `lag` is how many seconds a producer waits before
        it cuts a consumer that keeps a buffer (None: without limit). `access`
        is like a file's mode (0o600 to 0o666).
        """
        for value, known in (role, ROLES), (mode, MODES):
            if value not in known:
                raise Invalid(f"there is no {value!r}; use {' or '.join(known)}")
        times = milliseconds(timeout), 0 if lag is None else max(1, milliseconds(lag))
        kind = ROLES[role], capacity, credits, MODES[mode], access
        return Channel(self._channel(name, *kind, *times), name, role)

    async def aget(self, name, **options):
        """get() for asyncio. It waits without a thread."""
        from ._asyncio import aget

        return await aget(self, name, options)

    # --- inspecting -----------------------------------------------------------

    def names(self, prefix=None):
        """Return the names that begin with the prefix, sorted."""
        return sorted(entry["name"] for entry in self._list(prefix))

    def entries(self, prefix=None):
        """Return a list of dicts with the broker's facts about each of these names."""
        return sorted(self._list(prefix), key=lambda entry: entry["name"])

    def who(self, name):
        """Return the processes that hold the tensor or the bundle of this name,
        as a list of dicts. "holds" counts the holds of all members."""
        if not name.endswith("/"):
            return self._who(name)
        members = [entry for entry in self._list(name) if entry["bundle"] == name]
        if not members:
            raise make(errno.ENOENT, f"there is no bundle {name!r} that you may read")
        holders = {}
        for member in members:
            if not member["n_holders"]:
                continue
            with contextlib.suppress(NotFound):  # it was removed meanwhile
                for each in self._who(member["name"]):
                    known = holders.setdefault(each["pid"], {**each, "holds": 0})
                    known["holds"] += each["holds"]
        return list(holders.values())

    def status(self):
        """Return a dict of the broker's counters; "note" has its warnings."""
        counters, note = self._status()
        counters["note"] = note
        return counters
