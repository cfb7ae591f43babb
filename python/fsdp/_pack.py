"""pack(): batches of torch's data loaders, through channels."""

import itertools
import os
import threading

import torch.utils.data
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ._channel import size_of
from ._default import default
from ._errors import Ended, Gone, Invalid, Timeout
from ._loader_name import new_name

_PATIENCE = 60  # seconds for a channel that its worker has opened already
_SPARE = 1.25  # of the first batch: later ones may be a little larger


# --- in a worker --------------------------------------------------------------


def _stack(batch, *, collate_fn_map=None):
    """torch's own puts the result in shared memory, with pages that are new."""
    return torch.stack(batch)


def _collate(samples):
    return collate(
        samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: _stack}
    )


class _Sender:
    """What one worker sends through: a channel, which its first batch sizes."""

    def __init__(self, batch, credits):
        self.numbers = itertools.count()
        self.name = new_name()
        capacity = int(size_of((0, batch)) * _SPARE)
        self.channel = default().channel(
            self.name,
            "producer",
            capacity=capacity,
            credits=credits,
            timeout=_PATIENCE,
        )

    def send(self, batch):
        """What takes the place of the batch in torch's queue: the batch itself if
        no buffer is free, since the trainer may keep all that it gets."""
        number = next(self.numbers)
        try:
            self.channel.put((number, batch), timeout=0)
        except (Timeout, Invalid):
            return batch
        return _Sent(self.name, number)


class _Sent:
    """Becomes the batch where it is unpickled."""

    def __init__(self, name, number):
        self.name, self.number = name, number

    def __reduce__(self):
        return _receive, (self.name, self.number)


class _Pack:
    def __init__(self, collate_fn, credits):
        self.collate_fn = collate_fn or _collate
        self.credits = credits
        self._sender = None

    def __getstate__(self):
        return {**self.__dict__, "_sender": None}

    def __call__(self, samples):
        batch = self.collate_fn(samples)
        if torch.utils.data.get_worker_info() is None:
            return batch
        if self._sender is None:
            self._sender = _Sender(batch, self.credits)
        return self._sender.send(batch)


def pack(collate_fn=None, credits=8):
    """A collate_fn by which workers hand batches over in the broker's memory.

    For any loader that takes a collate_fn: `DataLoader(..., collate_fn=pack())`,
    or `pack(own)` around one's own. Each worker has a channel of `credits`
    buffers, a little larger than its first batch. A batch that is larger, or
    finds all of them in use, travels as torch sends it. Batches may be changed
    in place, and kept for as long as one likes.
    """
    return _Pack(collate_fn, credits)


# --- in the trainer -----------------------------------------------------------

_lock = threading.Lock()
_receivers = {}


def _forget_ended():
    """Close those whose worker has gone; what was received stays."""
    for name, channel in list(_receivers.items()):
        info = channel.info()
        if info["producers"] == 0 and info["queued"] == 0:
            _receivers.pop(name).close()


def _receiver(name):
    if name not in _receivers:
        _forget_ended()
        _receivers[name] = default().channel(name, timeout=_PATIENCE)
    return _receivers[name]


def _receive(name, number):
    with _lock:
        channel = _receiver(name)
        while True:
            try:
                found, batch = channel.get(timeout=_PATIENCE)
            except (Ended, Gone):
                _receivers.pop(name).close()
                raise
            if found == number:
                return batch
            # One that torch has dropped, as after a break out of an epoch.


def _after_fork():
    global _lock
    _lock = threading.Lock()
    _receivers.clear()


os.register_at_fork(after_in_child=_after_fork)
