"""How long a save by fsdp.dcp.Writer makes the trainer wait.

The state is saved again and again. The turns alternate with one copy of its
bytes by memcpy into memory that was used before, and with torch's own writers:
FileSystemWriter into /dev/shm, and async_save() with it, of which only the part
counts for which the trainer waits. The floor is memcpy for large tensors, and
FileSystemWriter for small ones, for which torch's own planning takes longest.
Times are those of a clock in the trainer.
"""

import ctypes
import os
import shutil
import statistics
import tempfile
import time
import warnings

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from . import dcp as ours
from ._bench_row import costs, reading
from ._default import connect

_MS = 1e6  # ns
_SECONDS = 6  # for each row, but at least this many rounds:
_ROUNDS = 5
# The tensors, the bytes of each, the floor, and the goal for ours / floor.
_ROWS = {
    "dcp_256MiB": (16, 16 << 20, "memcpy", 1.2),
    "dcp_1000_tensors": (1000, 4096, "file", 1),
}
_NAME = f"bench.{os.getpid()}"


class _Side:
    """One way to save, and the cost of each turn."""

    def __init__(self, save):
        self._save, self.turns = save, []

    def measure(self):
        before = reading(_MS)
        wait = self._save()
        self.turns.append([b - a for a, b in zip(before, reading(_MS))])
        if wait is not None:
            wait()  # the trainer continues meanwhile


def _memcpy(state):
    """Copy all bytes once by the C library."""
    size = sum(value.nbytes for value in state.values())
    target = torch.zeros(size, dtype=torch.uint8)
    pairs, at = [], target.data_ptr()
    for value in state.values():
        pairs.append((at, value.data_ptr(), value.nbytes))
        at += value.nbytes

    def copy():
        for pair in pairs:
            ctypes.memmove(*pair)

    copy.target = target  # this keeps the memory
    return copy


def _sides(client, state, folder):
    def writer(name):
        return dcp.FileSystemWriter(os.path.join(folder, name), sync_files=False)

    def save_async():
        return dcp.async_save(state, storage_writer=writer("async")).result

    return {
        "memcpy": _Side(_memcpy(state)),
        "fsdp": _Side(lambda: _save(client, state)),
        "file": _Side(lambda: dcp.save(state, storage_writer=writer("file")) and None),
        "async": _Side(save_async),
    }


def _save(client, state):
    dcp.save(state, storage_writer=ours.Writer(_NAME, client=client))


def _measure(sides, seconds):
    for _ in range(2):  # The first two saves use fresh memory.
        for side in sides.values():
            side.measure()
    first = sides["fsdp"].turns[0][0]
    for side in sides.values():
        side.turns.clear()
    end = time.monotonic() + seconds
    while len(sides["fsdp"].turns) < _ROUNDS or time.monotonic() < end:
        for side in sides.values():
            side.measure()
    return first


def _result(name, floor, budget, sides, first):
    turns = {label: side.turns for label, side in sides.items()}
    beside = {label: statistics.median(next(zip(*turns[label]))) for label in turns}
    return {
        **costs(name, "ms", turns["fsdp"], turns[floor]),
        "budget": budget,
        "beside": {"first": first, **beside},
    }


def results(path, is_quick):
    """Yield the rows, as fsdp._bench prints them. A quick run has the least
    number of rounds."""
    store = dist.HashStore()
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    folder = tempfile.mkdtemp(dir="/dev/shm")
    try:
        with connect(path) as client, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # warnings of torch's own planner
            for name, (n, size, floor, budget) in _ROWS.items():
                state = {str(i): torch.full((size // 4,), 1.0) for i in range(n)}
                sides = _sides(client, state, folder)
                first = _measure(sides, 0 if is_quick else _SECONDS)
                ours.remove(_NAME, client=client)
                yield _result(name, floor, budget, sides, first)
    finally:
        shutil.rmtree(folder)
        dist.destroy_process_group()
