"""Tests a channel between 4 producing and 3 consuming processes. Each item must
come once, in its producer's order, and a long run must not open more
descriptors and mappings.

FSDP_TEST_ITEMS=1000000 sends that many items instead of 2,000.
"""

import array
import contextlib
import multiprocessing
import os

import numpy
import pytest

import fsdp
from conftest import PATIENCE

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
N_ITEMS = int(os.environ.get("FSDP_TEST_ITEMS", 2000))
N_PRODUCERS, N_CONSUMERS = 4, 3
SHARE = N_ITEMS // N_PRODUCERS


def resources():
    """Returns the numbers of open descriptors and of mapped files."""
    with open("/proc/self/maps") as maps:
        n_mappings = sum(line.split()[4] != "0" for line in maps)
    return len(os.listdir("/proc/self/fd")), n_mappings


def produce(channel, me):
    for i in range(SHARE):
        channel.put((me, i, numpy.full(200, i)), timeout=6 * PATIENCE)
        if i == 0:
            before = resources()
    assert resources() == before
    channel.end()


def consume(channel):
    """Returns the numbers of the items that came from each producer, in their
    order."""
    came = [array.array("q") for _ in range(N_PRODUCERS)]
    before = None
    with contextlib.suppress(fsdp.Ended):
        while True:
            producer, i, data = channel.get(timeout=6 * PATIENCE)
            assert data.shape == (200,) and (data == i).all()
            del data  # otherwise it would keep a credit while this process waits
            came[producer].append(i)
            before = before or resources()
    assert before in (None, resources())
    return came


def join(barrier, mode):
    """Makes this process one of those that open the channel at the same
    time."""
    global opened

    def opened(role):
        options = {"capacity": 4096, "credits": 2, "timeout": 6 * PATIENCE}
        channel = fsdp.connect().channel(f"t/{mode}", role, mode=mode, **options)
        barrier.wait(6 * PATIENCE)
        return channel


def play(role, number):
    with opened(role) as channel:
        return produce(channel, number) if role == "producer" else consume(channel)


def consumed(mode):
    """Returns what each consumer received."""
    fork = multiprocessing.get_context("fork")
    roles = [("producer", i) for i in range(N_PRODUCERS)]
    roles += [("consumer", i) for i in range(N_CONSUMERS)]
    barrier = fork.Barrier(len(roles))
    with fork.Pool(len(roles), join, (barrier, mode)) as pool:
        return pool.starmap(play, roles, chunksize=1)[N_PRODUCERS:]


def test_a_queue_gives_each_item_to_one_consumer_in_order(broker):
    came = consumed("queue")
    for each in came:
        assert all(sorted(numbers) == list(numbers) for numbers in each)
    for numbers in zip(*came):
        assert sorted(i for part in numbers for i in part) == list(range(SHARE))


def test_a_broadcast_gives_each_item_to_every_consumer_in_order(broker):
    for each in consumed("broadcast"):
        assert [list(numbers) for numbers in each] == [list(range(SHARE))] * N_PRODUCERS
