"""Rows like those of fsdp-bench: what the hot calls cost beside their floor.

The floor is what Python itself needs for the same shape of work: calls of C
functions without arguments, or a dict look-up that makes an object. Both are
timed in turns, by the CPU time of this process.
"""

import itertools
import json
import statistics
import time

from ._default import connect

_LOOPS = 10000
_PAIRS = 21


class _Row:
    def __init__(self, name, limit, floor, ours):
        self.name, self.limit = name, limit
        self.floor, self.ours = floor, ours


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
        _Row("python_hold_release", 50, floor_hold, hold),
        _Row("python_get_by_name", 150, floor_get, get),
        _Row("python_memoryview", 400, floor_view, view),
    ]


def _time(function):
    start = time.process_time_ns()
    function(itertools.repeat(None, _LOOPS))
    return (time.process_time_ns() - start) / _LOOPS


def _measure(row):
    floors, ours = [], []
    for _ in range(_PAIRS):
        floors.append(_time(row.floor))
        ours.append(_time(row.ours))
    ours_sorted = sorted(ours)
    return {
        "name": row.name,
        "median": statistics.median(ours),
        "p99": ours_sorted[min(len(ours) - 1, len(ours) * 99 // 100)],
        "unit": "ns",
        "n": len(ours),
        "floor": statistics.median(floors),
        "ratio": statistics.median(o / f for o, f in zip(ours, floors) if f),
        "least": ours_sorted[0],
        "limit": row.limit,
    }


def bench(path=None, as_json=False):
    """Print the table; `limit` is the goal for the least of the samples."""
    with connect(path) as client:
        tensor = client.put("bench/x", bytes(64), tied=True)
        if not as_json:
            print(f"{'row':24}{'least':>8}{'median':>8}{'floor':>8}{'limit':>8}  ns")
        for row in _rows(client, tensor):
            result = _measure(row)
            if as_json:
                print(json.dumps(result), flush=True)
            else:
                columns = ("least", "median", "floor", "limit")
                numbers = "".join(f"{result[column]:8.0f}" for column in columns)
                print(f"{row.name:24}{numbers}", flush=True)
