"""Tests that threads of several processes can import a published tensor any
number of times, in any order, by its name and by tickets of its holders.
"""

import concurrent.futures
import multiprocessing
import queue
import random

import numpy
import pytest

import fsdp
from conftest import PATIENCE, until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
N_PROCESSES, N_THREADS, N_IMPORTS = 4, 2, 25
NAME, SUM = "a/imported", 499500


def share(tickets):
    global passed_on
    passed_on = tickets


def next_tensor(client, chance):
    """Returns the tensor, and how many tickets that took: 0 or 1."""
    if chance.random() < 0.6:
        try:
            return client.redeem(passed_on.get_nowait()), 1
        except queue.Empty:
            pass
    return client[NAME], 0


def import_often(client, seed):
    """Returns how many tickets this client made minus those that it
    redeemed."""
    chance, kept, n_tickets = random.Random(seed), [], 0
    for _ in range(N_IMPORTS):
        tensor, n_taken = next_tensor(client, chance)
        assert tensor.numpy().sum() == SUM
        kept.append(tensor)
        n_tickets -= n_taken
        if chance.random() < 0.6:
            passed_on.put(chance.choice(kept).ticket(ttl=600))
            n_tickets += 1
        while kept and chance.random() < 0.5:
            kept.pop(chance.randrange(len(kept)))
    return n_tickets


def play(number):
    client = fsdp.default()
    with concurrent.futures.ThreadPoolExecutor(N_THREADS) as threads:
        seeds = range(number * N_THREADS, (number + 1) * N_THREADS)
        return sum(threads.map(import_often, [client] * N_THREADS, seeds))


def test_imports_in_any_order_leave_no_holds(c):
    c.put(NAME, numpy.arange(1000))
    fork = multiprocessing.get_context("fork")
    tickets = fork.Queue()
    with fork.Pool(N_PROCESSES, share, (tickets,)) as pool:
        n_left = sum(pool.map(play, range(N_PROCESSES), chunksize=1))
        for _ in range(n_left):
            assert c.redeem(tickets.get(timeout=PATIENCE)).numpy().sum() == SUM
        # The processes that imported the tensor are still running.
        until(lambda: c.who(NAME) == [], "all holds are dropped")
        assert c.status()["tickets"] == 0
