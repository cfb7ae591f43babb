"""Fixtures: each test file has a broker of its own, on a socket of its own."""

import contextlib
import gc
import multiprocessing
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time

import pytest

import fsdp

BUILD = pathlib.Path(os.environ["FSDP_TEST_BUILD"])
PATIENCE = 60  # seconds; a wait that takes longer fails the test


def accepts(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
        return True


def until(is_true, what):
    """Waits until the condition is true. Fails if that takes too long."""
    end = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        time.sleep(0.002)


def sleeps(pid):
    """Returns whether the process waits in poll() or for a lock, and not only
    for a page or the CPU."""
    with open(f"/proc/{pid}/stat") as file:
        is_asleep = file.read().rpartition(")")[2].split()[0] == "S"
    time.sleep(0.01)
    return is_asleep


class Broker:
    def __init__(self, *options):
        self.dir = tempfile.TemporaryDirectory(prefix="fsdp-python.")
        self.path = os.path.join(self.dir.name, "sock")
        self.log = open(os.path.join(self.dir.name, "log"), "wb")
        self.process = subprocess.Popen(
            [BUILD / "fsdpd", *options, "--socket", self.path],
            stdin=subprocess.DEVNULL,
            stdout=self.log,
            stderr=self.log,
        )
        until(lambda: accepts(self.path), "fsdpd listens")

    def pid(self):
        """Returns the process of the broker itself, also if it has a
        supervisor."""
        pid = self.process.pid
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            children = file.read().split()
        for child in children:
            with open(f"/proc/{child}/comm") as file:
                if file.read().strip() == "fsdpd":
                    return int(child)
        return pid

    def kill(self):
        os.kill(self.pid(), signal.SIGKILL)

    def stop(self):
        # The end of some objects needs the broker, such as that of workers
        # whose error torch has raised. Collect those that only cycles keep
        # while it runs.
        gc.collect()
        self.process.terminate()
        self.process.wait(PATIENCE)
        self.log.close()
        self.dir.cleanup()


@pytest.fixture(scope="module")
def broker():
    broker = Broker()
    os.environ["FSDP_SOCKET"] = broker.path
    yield broker
    del os.environ["FSDP_SOCKET"]
    broker.stop()


@pytest.fixture(scope="module")
def brokers(broker):
    """Three brokers, which stand for three nodes."""
    others = [Broker(), Broker()]
    yield [broker, *others]
    for other in others:
        other.stop()


@pytest.fixture(scope="session")
def forkserver():
    """A server that forks workers from a process that has imported torch
    already, and pytest, which the test files import. All test files share one,
    so its users must ask for it by this fixture."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fsdp.torch", "pytest"])
    return context


@pytest.fixture
def supervised():
    broker = Broker("--supervised")
    yield broker
    broker.stop()


@pytest.fixture
def c(broker):
    """A connection. The tensors and names that a test leaves are removed after
    it."""
    with fsdp.connect(broker.path) as client:
        yield client
        names = {entry["bundle"] or entry["name"] for entry in client.entries()}
        if names:
            client.remove(names)


def connect_impatiently(path, reconnect):
    """Connects with a short limit for waits for the broker. The limit also
    holds for the reply to the connection, and a machine under load may be
    slower, so try again."""
    while True:
        with contextlib.suppress(fsdp.Timeout):
            return fsdp.connect(path, reconnect=reconnect)


def holds(client, name):
    """Returns how many holds this process has of the tensor with that name."""
    return sum(h["holds"] for h in client.who(name) if h["pid"] == os.getpid())


def start(broker, script, *options, arguments=(), **more):
    """Starts a script in another Python, which finds the package and the
    broker."""
    return subprocess.Popen(
        [sys.executable, *options, "-c", textwrap.dedent(script), *arguments],
        env={**os.environ, "FSDP_SOCKET": broker.path},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **more,
    )


def run(broker, script, *options):
    """Runs a script to its end. Returns its exit status, stdout and stderr."""
    process = start(broker, script, *options)
    out, err = process.communicate(timeout=6 * PATIENCE)
    return process.returncode, out, err
