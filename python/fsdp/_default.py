"""The connections of this process that are shared."""

import atexit
import os
import threading

from . import _fsdp
from ._client import Client

# A signal handler may call default() while default() waits.
_lock = threading.RLock()
_clients = {}


def connect(path=None, budget=0, reconnect=10):
    """Connect to the broker at a socket. With None, it looks where fsdpctl
    looks.

    `budget` limits the bytes that this connection has allocated at a time.
    `reconnect` is how many seconds calls wait for a broker that is being
    restarted (None: without limit), counted from the first call that finds it
    away. After that they raise fsdp.Disconnected immediately, until it is back.
    close() waits as long for a GPU that still works with the connection's
    tensors.

    Raises fsdp.Disconnected if no broker listens there.
    """
    return Client(path, budget, reconnect)


def default(path=None):
    """Return the connection that this process shares. A forked child gets its
    own.

    `path` is the broker's socket. None means FSDP_SOCKET at the time of the
    call, or the place where fsdpctl looks.
    """
    key = os.environ.get("FSDP_SOCKET") if path is None else path
    with _lock:
        client = _clients.get(key)
        if client is None or client.closed:
            client = _clients[key] = Client(path)
        return client


def redeem(ticket, *, writable=False):
    """Return the tensor that a ticket is for, held by the default connection."""
    return default().redeem(ticket, writable=writable)


def _forget():
    global _lock
    _lock = threading.RLock()
    _clients.clear()


# It is registered early, so it runs after the program's own functions.
atexit.register(_fsdp.leave_open)
os.register_at_fork(after_in_child=_forget)
