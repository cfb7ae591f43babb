"""The cost of attaching the weights of a model, and of switching to new ones.

The floor for attaching is safetensors.torch.load_file() of the same file in a
warm cache; both are timed in turns, by the CPU time of this process. The floor
for switching from one version to the next is what the kernel needs: to map a
file of the same size, to read a page of each weight, and to unmap the previous
file, of which all pages were read. Times of switches are those of a clock.
"""

import mmap
import os
import tempfile
import time

from ._bench_row import summary

_WEIGHTS = 1000
_SHAPE = (256, 64)
_PAIRS = 11


def _time(function):
    start = time.process_time_ns()
    kept = function()
    end = time.process_time_ns()
    del kept
    return (end - start) / 1e6


def _own_bytes():
    """Return the private memory of this process: its heap and the pages that it
    copied."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def _bytes_per_process(client, name):
    """Return how much memory an attachment adds to a process that reads all of
    it, with its objects."""
    before = _own_bytes()
    weights = client.bundle(name).state_dict()
    total = sum(float(weight[0, 0]) for weight in weights.values())
    assert total == len(weights)
    return max(0, _own_bytes() - before)


def _row(name, ours, floors, limit):
    """Return the row of times in ms that were measured in turns."""
    return {**summary(name, "ms", ours, floors), "limit": limit}


def _attach(client, name, path):
    """Return the row of the times of attaching."""
    from safetensors.torch import load_file

    floors, ours = [], []
    for _ in range(_PAIRS):
        floors.append(_time(lambda: load_file(path)))
        ours.append(_time(lambda: client.bundle(name).state_dict()))
    return _row("python_attach_1000_weights", ours, floors, 3)


def _own(client, name):
    """Return the row of the bytes of attaching. The limit has 1000 bytes for the
    objects of each weight, which is too little for copies of the weights."""
    extra = _bytes_per_process(client, name)
    return {
        "name": "python_attach_own_bytes",
        "median": extra,
        "p99": extra,
        "unit": "bytes",
        "n": 1,
        "floor": 0,
        "least": extra,
        "limit": 1000 * _WEIGHTS,
    }


# --- the pause at a switch ------------------------------------------------------

_SWITCHES = 51
_QUICK_SWITCHES = 3
# seconds between reads and switches, as in a server that waits for a request
_REST = 0.005
_SWITCH_WEIGHTS = 16
_PAGE = 4096


class _Mapped:
    """The floor: it has files instead of versions, and calls mmap() instead of
    get()."""

    def __init__(self, size):
        self._size, self._fd = size, os.memfd_create("fsdp-bench")
        os.truncate(self._fd, size)
        self._map = None

    def switch(self):
        new = mmap.mmap(self._fd, self._size, prot=mmap.PROT_READ)
        for at in range(0, self._size, self._size // _SWITCH_WEIGHTS):
            new[at]
        self._map = new

    def read(self):
        """Read all pages, as a model does that serves."""
        self._map[::_PAGE]

    def close(self):
        self._map = None
        os.close(self._fd)


class _Served:
    """A reader that switches to each new version."""

    def __init__(self, client, name):
        self._client, self._name = client, name
        self._bundle = client.bundle(name)

    def switch(self):
        assert self._bundle.stale
        new = self._client.bundle(self._name, newer_than=self._bundle.version)
        for weight in new.values():
            memoryview(weight)[0]
        self._bundle = new

    def read(self):
        for weight in self._bundle.values():
            memoryview(weight)[::_PAGE].tobytes()


def _clocked(function):
    start = time.perf_counter_ns()
    function()
    return (time.perf_counter_ns() - start) / 1e6


def _publish(writer, name, size):
    with writer.stage(name, replace=True, size=size) as stage:
        specs = [(str(i), size // _SWITCH_WEIGHTS, "u8") for i in range(_SWITCH_WEIGHTS)]
        for tensor in stage.alloc(specs):
            tensor.numpy()[:] = 1


def _switch(client, writer, title, size, n):
    """Return the row of the pause at a switch."""
    name = f"bench/switch.{os.getpid()}/"
    _publish(writer, name, size)
    served, mapped = _Served(client, name), _Mapped(size)
    mapped.switch()
    ours, floors = [], []
    for _ in range(n):
        _publish(writer, name, size)
        for side, times in (mapped, floors), (served, ours):
            side.read()
            time.sleep(_REST)
            times.append(_clocked(side.switch))
    mapped.close()
    client.remove(name)
    return _row(title, ours, floors, 1)


def results(client, writer, is_quick):
    """Yield the rows, as fsdp._bench prints them. A quick run has fewer switches."""
    import torch

    from .safetensors import save_file

    weights = {f"layer.{i}": torch.ones(_SHAPE) for i in range(_WEIGHTS)}
    name = f"bench/model.{os.getpid()}/"
    with tempfile.TemporaryDirectory() as directory:
        path = os.path.join(directory, "model.safetensors")
        save_file(weights, path)
        with client.stage(name, tied=True) as stage:
            for key, weight in weights.items():
                stage.put(key, weight)
        yield _own(client, name)
        yield _attach(client, name, path)
    client.remove(name)
    n = _QUICK_SWITCHES if is_quick else _SWITCHES
    yield _switch(client, writer, "python_switch_1MiB", 1 << 20, n)
    yield _switch(client, writer, "python_switch_256MiB", 256 << 20, n)
