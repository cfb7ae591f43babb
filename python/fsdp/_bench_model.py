"""What it takes to attach the weights of a model, beside reading its file.

The peer is safetensors.torch.load_file() of the same file in a warm cache; both
are timed in turns, by the CPU time of this process.
"""

import os
import statistics
import tempfile
import time

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
    """Memory of this process that is no other's: its heap and what it copied."""
    with open("/proc/self/status") as file:
        (line,) = (line for line in file if line.startswith("RssAnon"))
    return int(line.split()[1]) * 1024


def _bytes_per_process(client, name):
    """How much an attachment adds to a process that reads all of it, objects
    included."""
    before = _own_bytes()
    weights = client.bundle(name).state_dict()
    total = sum(float(weight[0, 0]) for weight in weights.values())
    assert total == len(weights)
    return max(0, _own_bytes() - before)


def _attach(client, name, path):
    """The row of the times."""
    from safetensors.torch import load_file

    floors, ours = [], []
    for _ in range(_PAIRS):
        floors.append(_time(lambda: load_file(path)))
        ours.append(_time(lambda: client.bundle(name).state_dict()))
    return {
        "name": "python_attach_1000_weights",
        "median": statistics.median(ours),
        "p99": max(ours),
        "unit": "ms",
        "n": len(ours),
        "floor": statistics.median(floors),
        "ratio": statistics.median(o / f for o, f in zip(ours, floors)),
        "least": min(ours),
        "limit": 3,
    }


def _own(client, name):
    """The row of the bytes: the limit is for Python's objects, and no weight
    would fit into it."""
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


def results(client):
    """The rows, as fsdp._bench prints them."""
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
