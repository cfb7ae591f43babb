"""A broker of its own for each test file, on a socket of its own."""

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
PATIENCE = 60  # seconds until what does not happen is a failure


def accepts(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as sock:
        try:
            sock.connect(path)
        except OSError:
            return False
        return True


def until(is_true, what):
    """Looks again and again; fails if it does not become true."""
    end = time.monotonic() + PATIENCE
    while not is_true():
        assert time.monotonic() < end, f"not within {PATIENCE} s: {what}"
        time.sleep(0.002)


def sleeps(pid):
    """Does a process wait in poll() or for a lock, and not for a page or the CPU?"""
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
        """Of the broker itself, also below its supervisor."""
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
        # What is only in cycles may need the broker to end, such as workers
        # whose error torch has raised.
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
    """Three, as of three nodes."""
    others = [Broker(), Broker()]
    yield [broker, *others]
    for other in others:
        other.stop()


@pytest.fixture(scope="session")
def forkserver():
    """Its workers are forked of a process that has imported torch already. There
    is one for all test files, so that who starts it has to say so."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["fsdp.torch"])
    return context


@pytest.fixture
def supervised():
    broker = Broker("--supervised")
    yield broker
    broker.stop()


@pytest.fixture
def c(broker):
    """A connection; the test's tensors and names are gone afterwards."""
    with fsdp.connect(broker.path) as client:
        yield client
        names = {entry["bundle"] or entry["name"] for entry in client.entries()}
        if names:
            client.remove(names)


def connect_impatiently(path, reconnect):
    """A client that waits only briefly for a broker that is away. The same limit
    holds for the broker's answer, and a machine under load may be slower."""
    while True:
        with contextlib.suppress(fsdp.Timeout):
            return fsdp.connect(path, reconnect=reconnect)


def holds(client, name):
    """How often this process holds the tensor of a name."""
    return sum(h["holds"] for h in client.who(name) if h["pid"] == os.getpid())


def start(broker, script, *options, arguments=(), **more):
    """Start a script in another Python, with the package and the broker."""
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
    """Run a script to its end: (exit status, stdout, stderr)."""
    process = start(broker, script, *options)
    out, err = process.communicate(timeout=6 * PATIENCE)
    return process.returncode, out, err
