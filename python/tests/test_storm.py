"""Processes do random things with the package (storm.py, storm_process.py). Whatever ends first,
no process crashes, no byte is wrong, and nothing is left in the broker.

FSDP_STORM_SEED=7 repeats a storm, and FSDP_STORM_ROUNDS=1000 makes that many of
each kind instead of one.
"""

import contextlib
import importlib.util
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

import pytest

import fsdp
from conftest import PATIENCE, Broker, accepts, until

ROUNDS = int(os.environ.get("FSDP_STORM_ROUNDS", 1))
SEED = os.environ.get("FSDP_STORM_SEED")
STORM = pathlib.Path(__file__).with_name("storm_process.py")
IS_SLOW = importlib.util.find_spec("torch") is not None
NO_MEMORY = "cannot allocate memory for thread-local data"
N_STEPS = 100


def begin(broker, kind, seed):
    return subprocess.Popen(
        [sys.executable, "-X", "dev", "-W", "error", STORM, kind, seed, str(N_STEPS)],
        env={**os.environ, "FSDP_SOCKET": broker.path},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def end(process, kind):
    try:
        said, _ = process.communicate(timeout=2 * PATIENCE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGUSR1)  # It shows where its threads are.
        time.sleep(1)
        os.killpg(process.pid, signal.SIGKILL)
        said, _ = process.communicate()
    if kind == "limits" and NO_MEMORY in said:  # glibc cannot tell that in another way.
        return
    assert (process.returncode, said) == (0, ""), f"status {process.returncode}: {said}"


def expect_nothing_left(broker):
    until(lambda: accepts(broker.path), "the broker is back")
    with fsdp.connect(broker.path) as c:
        until(lambda: c.status()["sessions"] == 1, "the sessions have ended")
        names = {entry["bundle"] or entry["name"] for entry in c.entries()}
        if names:
            c.remove(names)
        for what in ("tickets", "slots", "blocks", "bytes_live", "bundles"):
            until(lambda: c.status()[what] == 0, f"no {what} are left")  # noqa: B023


def kill_sometimes(broker, processes, rng):
    """Kills the broker a few times. The supervisor restarts it the later the
    more often that happens."""
    for _ in range(2):
        end_of_wait = time.monotonic() + rng.uniform(0.3, 2)
        while time.monotonic() < end_of_wait:
            if all(process.poll() is not None for process in processes):
                return
            time.sleep(0.01)
        broker.kill()


def storm(broker, kind):
    """Lets two processes do random things, and does what the kind says to their
    broker."""
    seed = SEED or str(random.randrange(1 << 30))
    print(f"FSDP_STORM_SEED={seed} {kind}", flush=True)
    rng = random.Random(seed)
    processes = [begin(broker, kind, f"{seed}.{i}") for i in range(2)]
    try:
        if kind == "kills":
            kill_sometimes(broker, processes, rng)
        elif kind == "stop":
            time.sleep(rng.uniform(1, 3))
            broker.process.terminate()
        for process in processes:
            end(process, kind)
    finally:
        for process in processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()


# With torch one kind is enough, since its import takes longer than a storm.
@pytest.mark.parametrize("kind", ["calm"] if IS_SLOW else ["calm", "limits", "kills"])
def test_nothing_is_wrong_or_left_after_a_storm(supervised, kind):
    for _ in range(ROUNDS):
        storm(supervised, kind)
        expect_nothing_left(supervised)


@pytest.mark.skipif(IS_SLOW, reason="the import of torch takes longer than a storm")
def test_nothing_crashes_after_the_end_of_the_broker():
    for _ in range(ROUNDS):
        broker = Broker()
        try:
            storm(broker, "stop")
        finally:
            broker.stop()
