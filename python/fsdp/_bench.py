"""Rows like those of fsdp-bench: the cost of frequent calls, compared with a
floor.

The floor is what Python itself needs for the same kind of work: calls of C
functions without arguments, or a dict look-up that makes an object; for a
channel, pickle.dumps() and loads(), which a queue of multiprocessing needs
before it sends anything. Both are timed in turns, by the CPU time of this
process. _bench_interrupt.py has the row of Ctrl-C, by a clock.
"""

import importlib.util
import itertools
import json
import os
import pickle
import time

from . import _bench_interrupt
from ._bench_row import summary
from ._default import connect

_LOOPS = 10000
_PAIRS = 21


class _Row:
    """A row of the table. Its goal is a number of ns, or `times` the least of
    the floor."""

    def __init__(self, name, limit, floor, ours, loops=_LOOPS, times=None):
        self.name, self.limit, self.loops, self.times = name, limit, loops, times
        self.floor, self.ours = floor, ours


def _channel_row(producer, consumer, name, limit, loops, *sizes):
    batch = [bytearray(size) for size in sizes]
    batch = [pickle.PickleBuffer(array) for array in batch]

    def floor(times):
        for _ in times:
            pickle.loads(pickle.dumps(batch, 5))

    def pass_on(times):
        for _ in times:
            producer.put(batch)
            consumer.get()

    return _Row(name, limit, floor, pass_on, loops)


def _channel_rows(producer, consumer):
    return [
        _channel_row(producer, consumer, "python_channel_64KiB", 25_000, 1000, 65536),
        _channel_row(producer, consumer, "python_channel_1MiB", 150_000, 100, 1 << 20),
        _channel_row(producer, consumer, "python_channel_114", 150_000, 100, *[256] * 114),
    ]


def _export_row(client, package, limit):
    """Return the row that gets a tensor by name for a package. The floor is the
    package's smallest array."""

    def floor(times):
        for _ in times:
            package.empty(0)

    def export(times):
        for _ in times:
            getattr(client.get("bench/x"), package.__name__)()

    return _Row(f"python_get_{package.__name__}", limit, floor, export, times=1.1)


def _export_rows(client):
    """Yield a row for each package that is installed."""
    for name, limit in ("numpy", 800), ("torch", None):
        if importlib.util.find_spec(name):
            yield _export_row(client, importlib.import_module(name), limit)


def _rows(client, tensor):
    number, names, make = 5, {"bench/x": 1}, object

    def floor_hold(times):
        for _ in times:
            number.bit_length()
            number.bit_length()

    def hold(times):
        for _ in times:
            tensor.hold()
            tensor.release()

    def floor_get(times):
        for _ in times:
            names.get("bench/x")
            make()

    def get(times):
        for _ in times:
            client.get("bench/x")

    def floor_view(times):
        data = bytes(64)
        for _ in times:
            memoryview(data)

    def view(times):
        for _ in times:
            memoryview(tensor)

    return [
        *_export_rows(client),
        _Row("python_hold_release", 50, floor_hold, hold),
        _Row("python_get_by_name", 150, floor_get, get),
        _Row("python_memoryview", 400, floor_view, view),
    ]


def _time(function, loops):
    start = time.process_time_ns()
    function(itertools.repeat(None, loops))
    return (time.process_time_ns() - start) / loops


def _measure(row):
    floors, ours = [], []
    for _ in range(_PAIRS):
        floors.append(_time(row.floor, row.loops))
        ours.append(_time(row.ours, row.loops))
    limit = row.limit or row.times * min(floors)
    return {**summary(row.name, "ns", ours, floors), "limit": limit}


def _results(path, kind, is_quick, second):
    if kind in ("channel", "loader", "distributed", "dcp"):
        module = importlib.import_module(f"._bench_{kind}", __package__)
        more = (second,) if kind == "distributed" else ()
        yield from module.results(path, is_quick, *more)
        return
    with connect(path) as client:
        if kind == "model":
            from . import _bench_model

            with connect(path) as writer:
                yield from _bench_model.results(client, writer, is_quick)
        else:
            yield from _call_results(client)


def _call_results(client):
    tensor = client.put("bench/x", bytes(64), tied=True)
    yield from map(_measure, _rows(client, tensor))
    size = {"capacity": 2 << 20, "credits": 2, "timeout": 10}
    name = f"bench/{os.getpid()}"
    with client.channel(name, "producer", **size) as producer:
        with client.channel(name, **size) as consumer:
            yield from map(_measure, _channel_rows(producer, consumer))
    yield from _bench_interrupt.results(client)


def _line(result, columns):
    numbers = "".join(f"{result[column]:10.6g}" for column in columns)
    line = f"{result['name']:28}{numbers}  {result['unit']}"
    if "budget" in result:
        is_met = result["ratio"] <= result["budget"]
    else:
        is_met = result["least"] <= result["limit"]
    line += "  met" if is_met else "  NOT MET"
    if "cpu" in result:
        line += (
            f"; CPU {result['cpu']:.4g}, floor {result['floor_cpu']:.4g}; "
            f"page faults {result['faults']:.4g}, floor {result['floor_faults']:.4g}"
        )
    if "memory" in result:
        line += f"; bytes {result['memory']:.4g}, floor {result['floor_memory']:.4g}"
    for label, value in result.get("beside", {}).items():
        line += f"; {label} {value:.4g}"
    return line


def bench(path=None, as_json=False, kind="calls", is_quick=False, second=None):
    """Print the table of one kind: "calls", "channel", "model", "loader",
    "distributed" or "dcp". `second` is the socket of another broker, for
    "distributed".

    `limit` is the goal for the least of the samples. `ratio` is the median of
    ours / floor, `budget` is the goal for it, and `best` is the ratio of the
    least samples.
    """
    columns = ["least", "median", "floor"]
    columns += ["best", "ratio", "budget"] if kind in ("loader", "distributed", "dcp") else ["limit"]
    if not as_json:
        print(f"{'row':28}" + "".join(f"{column:>10}" for column in columns))
    for result in _results(path, kind, is_quick, second):
        line = json.dumps(result) if as_json else _line(result, columns)
        print(line, flush=True)
