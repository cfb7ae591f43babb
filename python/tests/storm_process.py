"""A process of test_storm.py.

Arguments: the kind of storm, the seed, and the number of steps.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import multiprocessing
import os
import random
import signal
import sys
import threading
import traceback
import warnings

import fsdp
from conftest import PATIENCE, until
from storm import Storm


def be_quiet():
    """Hides what asyncio says of a machine under load, and of loops that the end
    of the process has interrupted."""
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")


def mapped():
    """Returns the lines of the memory that is the broker's."""
    with open("/proc/self/maps") as maps:
        return [line for line in maps if "fsdp" in line and "memfd" in line]


def descriptors():
    names = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    links = [os.readlink(name) for name in names if os.path.lexists(name)]
    return [link for link in links if not link.startswith("pipe:")]


def work(mine, over):
    try:
        while not over.is_set():
            mine.run(10)
            mine.check_all()
    except BaseException:
        traceback.print_exc()
        os._exit(3)


def other_main(pipe):
    """A spawned process: it gets tensors, and sends them back."""
    while True:
        tensor = pipe.recv()
        if tensor is None:
            return
        pipe.send((tensor, bytes(memoryview(tensor))))


def spawn(tensors):
    """Sends tensors to a spawned process and back."""
    spawning = multiprocessing.get_context("spawn")
    mine, its = spawning.Pipe()
    with mine, its:
        process = spawning.Process(target=other_main, args=(its,))
        process.start()
        for tensor, data in tensors:
            if tensor.name:
                continue  # It may have been replaced.
            mine.send(tensor)
            again, seen = mine.recv()
            assert bytes(memoryview(again)) == seen == data
        mine.send(None)
        process.join()
        assert process.exitcode == 0
        process.close()


def end_cleanly(storms, clients, before):
    """Drops everything, and waits until nothing of the broker is left."""
    for each in storms:
        each.check_all()
        each.drop_all()
    for client in clients:
        client.close()
    clients.clear()
    storms.clear()
    del each
    with contextlib.suppress(fsdp.Disconnected):
        fsdp.default().close()
    gc.collect()
    try:
        until(lambda: not mapped() and len(descriptors()) <= before, "all is closed")
    except AssertionError:
        print(mapped(), descriptors())
        raise


def main(kind, seed, n):
    """Returns what the process still has when it ends."""
    faulthandler.register(signal.SIGUSR1)
    be_quiet()
    asyncio.run(asyncio.sleep(0))
    before, rng = len(descriptors()), random.Random(f"{seed} main")
    is_clean, clients, over = rng.random() < 0.5, [], threading.Event()
    storms = [Storm(kind, f"{seed} 0", f"p{os.getpid()}", clients)]
    for i in range(rng.choice([0, 0, 2])):
        storms.append(Storm(kind, f"{seed} {i + 1}", f"p{os.getpid()}t{i}", clients))
    threads = [
        threading.Thread(target=work, args=(each, over), daemon=True) for each in storms[1:]
    ]
    for thread in threads:
        thread.start()
    storms[0].run(n)
    if rng.random() < 0.1 and kind == "calm":
        spawn(storms[0].tensors)
    if is_clean or rng.random() < 0.5:
        over.set()
        for thread in threads:
            thread.join()
    if is_clean:
        end_cleanly(storms, clients, before)
    return storms


if __name__ == "__main__":
    left = main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
