"""Memory that the ranks of a process group share, and to which all of them write."""

import weakref

import torch
import torch.distributed as dist

from ._default import default, redeem
from ._errors import Error
from ._work import BackendError

PURPOSES = ("gather", "reduction")
_MAX_BUFFERS = 62  # bits of a positive int64


def _nobody():
    return None


class Pool:
    """Buffers for one purpose. All ranks have the same buffers in the same
    order, and take them by the same calls."""

    def __init__(self, purpose):
        self._purpose = purpose
        self._buffers = []  # fsdp.Tensor of bytes
        self._users = []  # for each, a weak reference to its use by this rank

    def take(self, group, n, dtype):
        """Return memory of `n` elements that no rank uses. It can be taken
        again when all ranks have dropped the tensor and its views."""
        n_bytes = n * dtype.itemsize
        free = self._agree(group, n_bytes)
        fit = [i for i in free if self._buffers[i].nbytes >= n_bytes]
        at = min(fit, key=self._size, default=None)
        if at is None:
            at = self._make(group, n_bytes, free)
        user = memoryview(self._buffers[at])[:n_bytes]
        self._users[at] = weakref.ref(user)
        return torch.frombuffer(user, dtype=dtype)

    def clear(self):
        """Drop the buffers. A tensor that is still used keeps its memory."""
        self._buffers.clear()
        self._users.clear()

    def _size(self, at):
        return self._buffers[at].nbytes

    def _agree(self, group, n_bytes):
        """Return the buffers that are free on all ranks."""
        mine = sum(1 << i for i, user in enumerate(self._users) if user() is None)
        wanted = n_bytes * len(PURPOSES) + PURPOSES.index(self._purpose)
        said = torch.tensor([mine, wanted, ~wanted])
        dist.all_reduce(said, dist.ReduceOp.BAND, group)
        free, *others = said.tolist()
        # These are the bits that all ranks have set, and those that all have
        # clear.
        if others != [wanted, ~wanted]:
            raise BackendError(
                f"this rank has a {self._purpose} of {n_bytes} bytes where another "
                f"rank has something else; all ranks must run the same modules"
            )
        return [i for i in range(len(self._users)) if free >> i & 1]

    def _make(self, group, n_bytes, free):
        """Make a buffer, in place of one that is too small."""
        if free:
            at = max(free, key=self._size)
            del self._buffers[at], self._users[at]
        if len(self._buffers) == _MAX_BUFFERS:
            raise BackendError(
                f"{_MAX_BUFFERS} {self._purpose}s are in use at once; prefetch fewer"
            )
        self._buffers.append(_allocate(group, n_bytes))
        self._users.append(_nobody)
        return len(self._buffers) - 1


def _attempt(function):
    """Return the function's result and None, or None and the error."""
    try:
        return function(), None
    except Error as error:
        return None, error


def _allocate(group, n_bytes):
    """Make new memory: rank 0 allocates it, and sends the others a ticket."""
    n, seconds = group.size(), group.seconds
    buffer = error = None

    def make():
        made = default().alloc(n_bytes, "u8", timeout=seconds / 2)
        return made, made.ticket(uses=n - 1, ttl=seconds)

    ticket = [None]
    if group.rank() == 0:
        made, error = _attempt(make)
        buffer, ticket[0] = made or (None, None)
    dist.broadcast_object_list(ticket, group=group, group_src=0)
    if group.rank() > 0 and ticket[0]:
        buffer, error = _attempt(lambda: redeem(ticket[0], writable=True))
    said = [None] * n
    dist.all_gather_object(said, error and str(error), group)
    if error:
        raise error
    for rank, text in enumerate(said):
        if text:
            raise BackendError(f"rank {rank}: {text}")
    return buffer
