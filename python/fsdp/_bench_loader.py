"""The cost of a batch with fsdp.torch.DataLoader, compared with torch's own
DataLoader.

Each loader has one persistent worker, which collates 16 samples to a batch. The
loaders load an epoch in turns. The floor is torch with the better of its two
strategies for sharing memory. Times are those of a clock in the trainer, which
drops each batch at once; CPU time and page faults are those of both processes.
"""

import os
import statistics
import time

import torch.multiprocessing
import torch.utils.data

from ._bench_row import costs, reading
from .torch import DataLoader

_US = 1000  # ns
_SAMPLES = 16
_SECONDS = 4  # for each row, but at least this many rounds:
_ROUNDS = 3
# The tensors of a sample, bytes of each, batches of an epoch, and goal for ours
# / torch.
_ROWS = {
    "loader_64KiB": (1, 4096, 400, 1 / 8),
    "loader_1MiB": (1, 65536, 100, 1 / 10),
    "loader_16MiB": (1, 1 << 20, 16, 1 / 10),
    "loader_114_tensors": (114, 256, 16, 1 / 20),
}


class _Samples(torch.utils.data.Dataset):
    def __init__(self, n_tensors, size, n_batches):
        self.n_batches = n_batches
        self.samples = [
            {str(n): torch.full((size,), i, dtype=torch.uint8) for n in range(n_tensors)}
            for i in range(_SAMPLES)
        ]
        if n_tensors == 1:
            self.samples = [sample["0"] for sample in self.samples]

    def __len__(self):
        return _SAMPLES * self.n_batches

    def __getitem__(self, i):
        return self.samples[i % _SAMPLES]


class _Side:
    """A loader with its worker, and the cost of a batch in each epoch."""

    def __init__(self, loader, samples, strategy):
        self.strategy, self.n_batches = strategy, samples.n_batches
        before = torch.multiprocessing.get_sharing_strategy()
        torch.multiprocessing.set_sharing_strategy(strategy)
        try:
            self._loader = loader(
                samples, _SAMPLES, num_workers=1, persistent_workers=True
            )
            self._load()  # starts the worker, which inherits the strategy
        finally:
            torch.multiprocessing.set_sharing_strategy(before)
        self._pids = os.getpid(), self._loader._iterator._workers[0].pid
        self.epochs = []

    def _load(self):
        for _ in self._loader:
            pass

    def measure(self):
        before = reading(_US, *self._pids)
        self._load()
        spent = zip(before, reading(_US, *self._pids))
        self.epochs.append([(end - start) / self.n_batches for start, end in spent])
        return self

    def median(self):
        return statistics.median(next(zip(*self.epochs)))


def _in_time(call, items):
    """Return the results of the calls. On a busy machine torch's manager of
    files in shared memory misses a limit of its own, and the call fails."""
    results = []
    for item in items:
        try:
            results.append(call(item))
        except RuntimeError as error:
            if "Shared memory manager connection has timed out" not in str(error):
                raise
    return results


def _measure(samples, seconds):
    """Return the better side of torch, and ours."""
    strategies = sorted(torch.multiprocessing.get_all_sharing_strategies())
    peers = _in_time(
        lambda one: _Side(torch.utils.data.DataLoader, samples, one), strategies
    )
    ours = _Side(DataLoader, samples, strategies[0])
    end = time.monotonic() + seconds
    while len(ours.epochs) < _ROUNDS or time.monotonic() < end:
        peers = _in_time(_Side.measure, peers)
        ours.measure()
    return min(peers, key=_Side.median), ours


def _result(name, budget, peer, ours):
    row = costs(name, "us", ours.epochs, peer.epochs)
    return {**row, "budget": budget, "strategy": peer.strategy}


def results(path, is_quick):
    """Yield the rows, as fsdp._bench prints them. A quick run has the least
    number of rounds."""
    if path:
        os.environ["FSDP_SOCKET"] = path  # where trainer and workers connect
    for name, (n_tensors, size, n_batches, budget) in _ROWS.items():
        samples = _Samples(n_tensors, size, n_batches)
        sides = _measure(samples, 0 if is_quick else _SECONDS)
        yield _result(name, budget, *sides)
