"""How long Ctrl-C takes to end a wait, beside one of time.sleep().

A thread sends the signal to the process while the main thread sleeps in a call.
A turn's time is the longest of several calls: for a name, a channel, and ranks.
"""

import os
import signal
import threading
import time

from ._bench_row import summary

_TURNS = 11
_REST = 0.02  # seconds until the call sleeps
_LONG = 60  # seconds for which it would


def _interrupted(wait, *args):
    """Milliseconds from the signal to its exception."""
    sent = []

    def ring():
        time.sleep(_REST)
        sent.append(time.perf_counter_ns())
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=ring)
    try:
        thread.start()
        wait(*args)
    except KeyboardInterrupt:
        end = time.perf_counter_ns()
    thread.join()
    return (end - sent[0]) / 1e6


def _measure(client, channel):
    name, floors, ours = f"bench/{os.getpid()}", [], []
    for i in range(_TURNS):
        floors.append(_interrupted(time.sleep, _LONG))
        ours.append(
            max(
                _interrupted(lambda: client.get(f"{name}.none", timeout=_LONG)),
                _interrupted(channel.get, _LONG),
                # A join that was interrupted lasts as long as the connection.
                _interrupted(client._join, f"{name}.{i}", 2, 0, _LONG),
            )
        )
    return {**summary("python_interrupt", "ms", ours, floors), "limit": 300}


def results(client):
    """The row, as fsdp._bench prints it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with client.channel(f"bench/{os.getpid()}.wait", capacity=4096) as channel:
            yield _measure(client, channel)
    finally:
        signal.signal(signal.SIGINT, before)
