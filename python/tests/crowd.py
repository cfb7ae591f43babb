"""Ranks of torch.distributed: processes that run the cases of a suite and
report the errors of each.
"""

import contextlib
import datetime
import gc
import multiprocessing
import os
import sys
import tempfile
import traceback
import warnings

import torch
import torch._dynamo  # noqa: F401 - see begin()
import torch.distributed as dist

from conftest import PATIENCE


def begin(backend, store, rank, world, socket=None):
    """Makes the forked process a rank. It inherits torch._dynamo, which many
    calls of torch import, such as those of new_group(), optimizers and
    checkpoints, and which takes about a second of CPU. Garbage collection leaves
    out what the rank inherits, whose pages it would copy."""
    torch.set_num_threads(1)
    gc.freeze()
    if socket:
        os.environ["FSDP_SOCKET"] = socket
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=6 * PATIENCE),
    )


def _run(backend, cases, said, *place):
    begin(backend, *place)
    for name, case in cases.items():
        try:
            case()
        except BaseException:
            said.send((name, traceback.format_exc()))
            os._exit(1)  # The other ranks would wait for this one for ever.
        said.send((name, None))
    dist.destroy_process_group()


def _received(receiver):
    with contextlib.suppress(EOFError):
        while True:
            yield receiver.recv()


def run(backend, world, cases, sockets=None):
    """Returns for each rank and case None, or the traceback of the failure. All
    cases run in one set of processes, because starting these takes longer than
    the cases. `sockets` are those of the ranks' brokers, if there are
    several."""
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(world)]
    with tempfile.TemporaryDirectory(prefix="fsdp-ranks.") as directory:
        ranks = [
            fork.Process(
                target=_run,
                args=(backend, cases, pipe[1], f"{directory}/store", rank, world, socket),
            )
            for rank, (pipe, socket) in enumerate(zip(pipes, sockets or [None] * world))
        ]
        for rank in ranks:
            rank.start()
        for _, sender in pipes:
            sender.close()
        try:
            return [dict(_received(receiver)) for receiver, _ in pipes]
        finally:
            for rank in ranks:
                rank.kill()
                rank.join()


def run_on(brokers, layout, backend, cases):
    """Does the same, with the broker number layout[r] for rank r."""
    sockets = [brokers[int(number)].path for number in layout]
    return run(backend, len(layout), cases, sockets)


def check(verdicts, case):
    for rank, said in enumerate(verdicts):
        verdict = said.get(case, "it did not come so far")
        assert verdict is None, f"rank {rank}: {verdict}"


class Script:
    """A process that runs a script, like subprocess.Popen. It is forked from
    this one, because to import torch takes 2.6 s of CPU."""

    def __init__(self, broker, script, arguments):
        self._files = tempfile.TemporaryFile("w+"), tempfile.TemporaryFile("w+")
        fork = multiprocessing.get_context("fork")
        arguments = [str(argument) for argument in arguments]
        self._process = fork.Process(target=self._run, args=(broker, script, arguments))
        self._process.start()
        self.kill = self._process.kill

    def _run(self, broker, script, arguments):
        for number, file in enumerate(self._files, 1):
            os.dup2(file.fileno(), number)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
        sys.argv = ["-c", *arguments]
        os.environ["FSDP_SOCKET"] = broker.path
        warnings.resetwarnings()
        torch.set_num_threads(1)
        exec(compile(script, "<script>", "exec"), {"__name__": "__main__"})

    def wait(self, timeout=None):
        self._process.join(timeout)
        return self._process.exitcode

    def communicate(self, timeout=None):
        """Returns what the process wrote, and its exit status."""
        status = self.wait(timeout)
        said = []
        for file in self._files:
            with file:
                file.seek(0)
                said.append(file.read())
        return *said, status


class Rank:
    """A process that has joined a group, and makes one call when it is told
    to."""

    def __init__(self, call, *place):
        fork = multiprocessing.get_context("fork")
        self._pipe, theirs = fork.Pipe()
        self.process = fork.Process(target=self._serve, args=(call, theirs, *place))
        self.process.start()
        theirs.close()

    def _serve(self, call, pipe, *place):
        begin("fsdpd", *place)
        pipe.send("ready")
        pipe.recv()
        try:
            pipe.send(call())
        except BaseException as error:
            pipe.send(error)

    def go(self):
        self._pipe.send("go")

    def said(self):
        """Returns what the call returned or raised."""
        assert self._pipe.poll(6 * PATIENCE)
        return self._pipe.recv()

    def kill(self):
        self.process.kill()
        self.process.join()


@contextlib.contextmanager
def crew(directory):
    """Yields a function that starts a Rank with the call for each of the
    brokers, and returns the ranks when all are in the group."""
    started = []

    def start(call, sockets):
        store, world = directory / f"store{len(started)}", len(sockets)
        ranks = [Rank(call, store, rank, world, at) for rank, at in enumerate(sockets)]
        started.extend(ranks)
        for rank in ranks:
            assert rank.said() == "ready"
        return ranks

    yield start
    for rank in started:
        rank.kill()
