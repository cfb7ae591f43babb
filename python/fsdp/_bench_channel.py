"""The cost of passing a small item to another process through a channel.

In "stream" the other process sends without waiting, and this one receives. In
"turn" each item is answered before the next one is sent, so that each side
waits for the other; half of the time counts for one item. Both are measured in
turns with multiprocessing's pipe (one system call for each side), SimpleQueue
and Queue. The floor is SimpleQueue for a stream, and the pipe, with one
wake-up, for a turn. Times are those of a clock in this process, in ns for each
item.
"""

import multiprocessing
import os
import time

from ._bench_row import summary
from ._default import connect

_ITEM = bytes(64)
_ITEMS = 1000  # in each turn
_TURNS, _QUICK = 25, 3
_OURS = "fsdpd"


class _Pipe:
    def __init__(self):
        receiver, sender = multiprocessing.get_context("spawn").Pipe(duplex=False)
        self.get, self.put = receiver.recv_bytes, sender.send_bytes


def _queues():
    """Return two queues of each kind, one for each direction."""
    context = multiprocessing.get_context("spawn")
    return {
        "pipe": (_Pipe(), _Pipe()),
        "SimpleQueue": (context.SimpleQueue(), context.SimpleQueue()),
        "Queue": (context.Queue(), context.Queue()),
    }


def _channels(client, name, roles):
    options = {"capacity": 4096, "credits": 64, "timeout": 60}
    return [client.channel(f"{name}/{i}", role, **options) for i, role in enumerate(roles)]


def _answer(take, give):
    for _ in range(_ITEMS):
        give(take())


def _send(take, give):
    take()
    for _ in range(_ITEMS):
        give(_ITEM)


_OTHERS = {"stream": _send, "turn": _answer}


def _be_other(path, name, queues, orders):
    with connect(path) as client:
        there, back = _channels(client, name, ("consumer", "producer"))
        ways = {_OURS: (there, back), **queues}
        while order := orders.recv():
            kind, way = order
            _OTHERS[kind](ways[way][0].get, ways[way][1].put)


def _stream(give, take):
    give(_ITEM)
    take()
    start = time.perf_counter_ns()
    for _ in range(_ITEMS - 1):
        take()
    return (time.perf_counter_ns() - start) / (_ITEMS - 1)


def _turn(give, take):
    start = time.perf_counter_ns()
    for _ in range(_ITEMS):
        give(_ITEM)
        take()
    return (time.perf_counter_ns() - start) / _ITEMS / 2


def _measure(measure, kind, ways, orders, turns):
    """Return the times of each way, which are measured in turns."""
    times = {way: [] for way in ways}
    for _ in range(turns):
        for way, (there, back) in ways.items():
            orders.send((kind, way))
            times[way].append(measure(there.put, back.get))
    return times


def _result(name, floor, limit, times):
    ours, floors = times[_OURS], times[floor]
    return {
        **summary(name, "ns", ours, floors),
        "limit": limit or 1.3 * min(floors),
        "beside": {way: min(times[way]) for way in times if way != _OURS},
    }


def _rows(ways, orders, turns):
    stream = _measure(_stream, "stream", ways, orders, turns)
    yield _result("python_channel_stream", "SimpleQueue", 3000, stream)
    turn = _measure(_turn, "turn", ways, orders, turns)
    yield _result("python_channel_turn", "pipe", None, turn)


def results(path, is_quick):
    """Yield the rows, as fsdp._bench prints them."""
    context = multiprocessing.get_context("spawn")
    queues, name = _queues(), f"bench/{os.getpid()}"
    theirs, orders = context.Pipe()
    other = context.Process(target=_be_other, args=(path, name, queues, theirs), daemon=True)
    other.start()
    theirs.close()
    with connect(path) as client:
        there, back = _channels(client, name, ("producer", "consumer"))
        ways = {_OURS: (there, back), **queues}
        yield from _rows(ways, orders, _QUICK if is_quick else _TURNS)
        orders.send(None)
        other.join()
