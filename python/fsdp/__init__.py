"""fsdp: the tensors of a node, shared between processes without copies.

>>> import fsdp
>>> c = fsdp.connect()
>>> batch = c.put("train/batch", [[1.0, 2.0], [3.0, 4.0]])
>>> c["train/batch"].numpy()
array([[1., 2.],
       [3., 4.]])
>>> "train/batch" in c, c.names("train/")
(True, ['train/batch'])
>>> c.get("train/next", timeout=0.01)
Traceback (most recent call last):
    ...
fsdp.Timeout: "train/next" was not published within 10 ms

Write in place, and then publish:

>>> t = c.alloc((2, 3), "f32")
>>> t.numpy()[:] = 7
>>> t.publish("train/next")
1
>>> float(c["train/next"].numpy().sum())
42.0

docs/python.md has the rest.
"""

import sys

if "t" in sys.abiflags:  # There the module is not found, or crashes.
    raise ImportError(
        "fsdp needs an interpreter with a GIL, and this is a free-threaded one; use "
        "python{}.{}".format(*sys.version_info)
    )

try:
    from ._fsdp import version as __version__
except ModuleNotFoundError as e:
    raise ImportError(
        "cannot import fsdp: {} has no compiled module; build it "
        "(cmake --build --preset release), and put build/release/python into "
        "PYTHONPATH instead of these sources".format(__path__[0])
    ) from e

from ._bundle import Bundle, Stage
from ._channel import Channel, Slab
from ._client import Client
from ._default import connect, default, redeem
from ._dtypes import DTYPES
from ._errors import (
    Aborted,
    Denied,
    Disconnected,
    Ended,
    Error,
    Exists,
    Gone,
    Invalid,
    Lagged,
    Left,
    NoRoom,
    NotFound,
    ProducerDied,
    Timeout,
)
from ._load import load_once
from ._plan import plan
from ._tensor import Tensor

__all__ = [
    "Aborted",
    "Bundle",
    "Channel",
    "Client",
    "DTYPES",
    "Denied",
    "Disconnected",
    "Ended",
    "Error",
    "Exists",
    "Gone",
    "Invalid",
    "Lagged",
    "Left",
    "NoRoom",
    "NotFound",
    "ProducerDied",
    "Slab",
    "Stage",
    "Tensor",
    "Timeout",
    "connect",
    "default",
    "load_once",
    "plan",
    "redeem",
]

for _class in (Bundle, Channel, Client, Slab, Stage, Error, ProducerDied, *Error.__subclasses__()):
    _class.__module__ = "fsdp"
