"""Ranks of torch.distributed: processes that run the cases of a suite, and say
of each what was wrong."""

import contextlib
import datetime
import multiprocessing
import os
import tempfile
import traceback

import torch
import torch.distributed as dist

from conftest import PATIENCE


def begin(backend, store, rank, world):
    torch.set_num_threads(1)
    dist.init_process_group(
        backend,
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=6 * PATIENCE),
    )


def _run(backend, cases, store, rank, world, said):
    begin(backend, store, rank, world)
    for name, case in cases.items():
        try:
            case()
        except BaseException:
            said.send((name, traceback.format_exc()))
            os._exit(1)  # The others wait for this rank.
        said.send((name, None))
    dist.destroy_process_group()


def _received(receiver):
    with contextlib.suppress(EOFError):
        while True:
            yield receiver.recv()


def run(backend, world, cases):
    """What each rank says of each case: None, or its traceback. All run in one
    go: a process that starts costs more than they do."""
    fork = multiprocessing.get_context("fork")
    pipes = [fork.Pipe(duplex=False) for _ in range(world)]
    with tempfile.TemporaryDirectory(prefix="fsdp-ranks.") as directory:
        ranks = [
            fork.Process(
                target=_run,
                args=(backend, cases, f"{directory}/store", rank, world, pipe[1]),
            )
            for rank, pipe in enumerate(pipes)
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


def check(verdicts, case):
    for rank, said in enumerate(verdicts):
        verdict = said.get(case, "it did not come so far")
        assert verdict is None, f"rank {rank}: {verdict}"


class Rank:
    """A process that is in a group, and makes one call when it is told."""

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
        """What the call returned or raised."""
        assert self._pipe.poll(6 * PATIENCE)
        return self._pipe.recv()

    def kill(self):
        self.process.kill()
        self.process.join()
