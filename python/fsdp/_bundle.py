"""Bundles: many tensors that are published, replaced and got as one."""

import errno
import json
import threading
from collections.abc import Mapping

from ._dtypes import name_of
from ._errors import make
from ._source import source_of

#: The member that has a bundle's metadata, also if fsdpctl load made it.
METADATA = "__metadata__"

# Members in one request.
_BATCH = 256

_ROWS = 60  # tensors that a notebook shows


def strings_of(metadata):
    """Return metadata as a dict, if all readers can use it. They want strings."""
    strings = dict(metadata)
    for key, value in strings.items():
        if not (isinstance(key, str) and isinstance(value, str)):
            raise make(
                errno.EINVAL,
                f"cannot write the metadata {key!r}: {value!r}: both must be "
                "strings; use str()",
            )
    return strings


def shape_of(shape):
    return (shape,) if isinstance(shape, int) else tuple(shape)


class Stage:
    """A bundle that is being made; Client.stage() makes it.

    As a context manager it commits at the end of the block, and aborts if the
    block raises. Other processes see the bundle only after the commit.
    """

    def __init__(self, stage, name):
        # A signal handler may call methods while one of them waits.
        self._stage, self._lock = stage, threading.RLock()
        #: The bundle's name, which ends in "/".
        self.name = name
        #: The version, after the commit.
        self.version = None
        #: A dict of strings that readers find in Bundle.metadata.
        self.metadata = {}

    def __repr__(self):
        return f"fsdp.Stage({self.name!r})"

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.abort()
        elif self.version is None:
            self.commit()

    def alloc(self, name, shape=None, dtype=None):
        """Allocate a member, or all members of a list of (name, shape, dtype).

        Names are without that of the bundle. Write to the tensors before the
        commit. After it no process can write, not even this one.
        """
        wanted = [(name, shape, dtype)] if isinstance(name, str) else list(name)
        tensors = []
        for i in range(0, len(wanted), _BATCH):
            some = wanted[i : i + _BATCH]
            names = [self.name + member for member, _, _ in some]
            specs = [(shape_of(shape), name_of(dtype)) for _, shape, dtype in some]
            with self._lock:
                tensors += self._stage.alloc(names, specs)
        return tensors[0] if isinstance(name, str) else tensors

    def put(self, name, array):
        """Copy an array into a new member. It takes what Client.put() takes."""
        source = source_of(array)
        tensor = self.alloc(name, source.shape, source.dtype)
        source.copy_to(tensor)
        return tensor

    def commit(self):
        """Publish all members at once, and return the bundle's version."""
        if self.metadata:
            strings = strings_of(self.metadata)
            self.put(METADATA, json.dumps(strings, separators=(",", ":")).encode())
            self.metadata = {}
        with self._lock:
            self.version = self._stage.commit()
        return self.version

    def abort(self):
        """Free all members. No other process has seen them."""
        with self._lock:
            self._stage.abort()


class Bundle(Mapping):
    """A version of a bundle, whose members are all held; Client.bundle() gets
    it.

    It maps names, without that of the bundle, to tensors, in the order in which
    they were allocated.
    """

    def __init__(self, client, name, version, members):
        self._client = client
        self._metadata = members.pop(METADATA, None)
        self._members = members
        #: The bundle's name, which ends in "/".
        self.name = name
        #: The version of the bundle, from 1.
        self.version = version

    def __getitem__(self, name):
        try:
            return self._members[name]
        except KeyError:
            pass
        raise make(
            errno.ENOENT, f'"{self.name}" has no tensor {name!r}; keys() shows its names'
        )

    def __iter__(self):
        return iter(self._members)

    def __len__(self):
        return len(self._members)

    def __repr__(self):
        noun = "tensor" if len(self) == 1 else "tensors"
        return f"fsdp.Bundle({self.name!r}, version={self.version}, {len(self)} {noun})"

    def _repr_html_(self):
        from html import escape

        columns = "shape", "dtype", "nbytes"
        rows = [("name", *columns)]
        for name, tensor in list(self._members.items())[:_ROWS]:
            rows.append((name, *(getattr(tensor, column) for column in columns)))
        if len(self) > _ROWS:
            rows.append((f"and {len(self) - _ROWS} more",))
        cells = ("".join(f"<td>{escape(str(cell))}</td>" for cell in row) for row in rows)
        lines = "".join(f"<tr>{row}</tr>" for row in cells)
        return f"<p>{escape(repr(self))}</p><table>{lines}</table>"

    def __reduce__(self):
        raise TypeError("a bundle cannot be pickled; send its name and get it there")

    @property
    def metadata(self):
        """The dict of strings that the maker of the bundle has left."""
        if self._metadata is None:
            return {}
        return json.loads(bytes(memoryview(self._metadata)))

    @property
    def nbytes(self):
        """The bytes of all elements."""
        return sum(tensor.nbytes for tensor in self._members.values())

    @property
    def stale(self):
        """True if the name shows another version now, or no version. It needs
        no request."""
        return not self._client._shows(next(iter(self._held())))

    def _held(self):
        return [self._metadata] if self._metadata else self._members.values()

    def state_dict(self, *, private=False):
        """Return all members as torch tensors, without a copy, for
        model.load_state_dict(m.state_dict(), assign=True).

        `private`: this process may change the tensors. Of tensors of 1 MiB and
        more, only the pages that it writes are copied.
        """
        from .torch import from_tensor

        return {
            name: from_tensor(tensor, private) for name, tensor in self._members.items()
        }
