"""The connections of this process that nobody has to pass around."""

import atexit
import os
import threading

from . import _fsdp
from ._client import Client

_lock = threading.Lock()
_clients = {}


def connect(path=None, budget=0, reconnect=10):
    """Connect to the broker at a socket; None: where fsdpctl looks, too.

    `budget` limits the bytes that this connection has allocated at a time.
    `reconnect` is how many seconds calls wait for a broker that is being
    restarted (None: for ever), from the first one that finds it away; then they
    raise fsdp.Disconnected at once, until it is back. close() waits as long for
    a GPU that still works with the connection's tensors.
    Raises fsdp.NotFound or fsdp.Disconnected if no broker listens there.
    """
    return Client(path, budget, reconnect)


def default(path=None):
    """The connection that this process shares; a forked child gets its own.

    `path` is the broker's socket. None: FSDP_SOCKET, as it is at this call, or
    where fsdpctl looks.
    """
    key = os.environ.get("FSDP_SOCKET") if path is None else path
    with _lock:
        client = _clients.get(key)
        if client is None or client.closed:
            client = _clients[key] = Client(path)
        return client


def redeem(ticket, *, writable=False):
    """The tensor that a ticket is for, held by the default connection."""
    return default().redeem(ticket, writable=writable)


def _forget():
    global _lock
    _lock = threading.Lock()
    _clients.clear()


# Registered early, so it runs after what the program itself does at its end.
atexit.register(_fsdp.leave_open)
os.register_at_fork(after_in_child=_forget)
