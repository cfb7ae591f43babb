"""pack() sends batches of torch's data loaders through channels."""

import itertools
import os
import threading

import torch.utils.data
from torch.utils.data._utils.collate import collate, default_collate_fn_map

from ._channel import size_of
from ._default import default
from ._errors import Ended, Gone, Invalid, Timeout
from ._loader_name import new_name

_PATIENCE = 60  # seconds; the worker has opened the channel already
_SPARE = 1.25  # allows for batches that are a little larger than the first


# --- in a worker --------------------------------------------------------------


def _stack(batch, *, collate_fn_map=None):
    """torch's own function puts the result in shared memory, whose pages are new."""
    return torch.stack(batch)


def _collate(samples):
    return collate(
        samples, collate_fn_map={**default_collate_fn_map, torch.Tensor: _stack}
    )


class _Sender:
    """The end of one worker: a channel, whose size is chosen by the first batch."""

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
        """Return the object that torch's queue carries in place of the batch.
        It is the batch itself if no buffer is free, since the trainer may keep
        all batches."""
        number = next(self.numbers)
        try:
            self.channel.put((number, batch), timeout=0)
        except (Timeout, Invalid):
            return batch
        return _Sent(self.name, number)


class _Sent:
    """Becomes the batch when it is unpickled."""

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
    """Return a collate_fn by which workers hand over batches in the broker's
    memory.

    It is for any loader that takes a collate_fn: `DataLoader(...,
    collate_fn=pack())`, or `pack(own)` for a collate_fn of your own. Each
    worker has a channel of `credits` buffers, a little larger than its first
    batch. A batch that is larger, or finds no free buffer, is sent as torch
    does it. Batches may be changed in place, and kept for any time.
    """
    return _Pack(collate_fn, credits)


# --- in the trainer -----------------------------------------------------------

_lock = threading.Lock()
_receivers = {}


def _forget_ended():
    """Close the channels of workers that have ended. Received batches stay."""
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
            # The iterator was dropped by torch, as after a break out of an
            # epoch.


def _after_fork():
    global _lock
    _lock = threading.Lock()
    _receivers.clear()


os.register_at_fork(after_in_child=_after_fork)
