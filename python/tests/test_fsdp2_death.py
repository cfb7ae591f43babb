"""Tests that a rank of an FSDP2 training can be killed and replaced. The other
ranks are told, and a new group continues from the checkpoint to the same bits.
"""

import datetime
import hashlib
import multiprocessing
import os
import sys
import tempfile
import warnings

import pytest

pytest.importorskip("torch.distributed.fsdp")

import torch  # noqa: E402
import torch._dynamo  # noqa: E402, F401 - the ranks need it, and importing it takes 1 s
import torch.distributed as dist  # noqa: E402
import torch.distributed.checkpoint as dcp  # noqa: E402
from torch import nn  # noqa: E402
from torch.distributed.checkpoint.state_dict import (  # noqa: E402
    get_state_dict,
    set_state_dict,
)
from torch.distributed.fsdp import fully_shard  # noqa: E402

import fsdp.dcp  # noqa: E402
import fsdp.distributed  # noqa: E402
import fsdp.fsdp2  # noqa: E402
from conftest import PATIENCE, until  # noqa: E402

WORLD, STEPS, DEATH = 3, 5, 2


def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(31, 31), nn.Tanh()) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    fsdp.fsdp2.use(model)
    return model


class Trainer:
    """What a rank does. It trains until all steps are done, in one group after
    another, whose numbers it receives. In the backward pass of the step `last`
    it stops and waits to be killed, unless that is None."""

    def __init__(self, pipe, directory, rank, last):
        self.pipe, self.directory, self.rank, self.last = pipe, directory, rank, last

    def serve(self):
        self.pipe.send("is ready")
        while (number := self.pipe.recv()) is not None:
            try:
                self.train(number)
            except fsdp.distributed.BackendError as error:
                self.pipe.send(f"is told: {error}")
                self.model.reset_iter_state()  # which drops what was gathered
            dist.destroy_process_group()
            self.pipe.send("is out")

    def await_death(self, grad):
        self.pipe.send("waits")
        self.pipe.recv()

    def train(self, number):
        dist.init_process_group(
            "fsdpd",
            init_method=f"file://{self.directory}/store.{number}",
            rank=self.rank,
            world_size=WORLD,
            timeout=datetime.timedelta(seconds=15 * PATIENCE),
        )
        self.model = model = make_model()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        done = self.go_on(optimizer) if number > 0 else 0
        for step in range(done, STEPS):
            torch.manual_seed(100 * step + self.rank)
            out = model(torch.randn(8, 31))
            if step == self.last:
                out.register_hook(self.await_death)
            out.square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            dcp.save(self.state(optimizer, step + 1), storage_writer=fsdp.dcp.Writer("run"))
        whole = [p.full_tensor().detach() for p in model.parameters()]
        digest = hashlib.sha256(b"".join(p.numpy().tobytes() for p in whole))
        self.pipe.send(f"ends with {digest.hexdigest()}")

    def state(self, optimizer, done):
        weights, moments = get_state_dict(self.model, optimizer)
        return {"model": weights, "optimizer": moments, "done": done}

    def go_on(self, optimizer):
        """Returns how many steps are done in the checkpoint, which is loaded."""
        state = self.state(optimizer, 0)
        dcp.load(state, storage_reader=fsdp.dcp.Reader("run"))
        weights, moments = state["model"], state["optimizer"]
        set_state_dict(
            self.model, optimizer, model_state_dict=weights, optim_state_dict=moments
        )
        self.pipe.send(f"goes on after step {state['done']}")
        return state["done"]


class Rank:
    """A process that runs a Trainer. It is forked, because a new Python would
    import torch again, which takes 4 s of CPU."""

    def __init__(self, *place):
        fork = multiprocessing.get_context("fork")
        self.pipe, theirs = fork.Pipe()
        self.output = tempfile.TemporaryFile("w+")
        self.process = fork.Process(target=self.run, args=(theirs, *place))
        self.process.start()
        theirs.close()

    def run(self, pipe, *place):
        for number in (1, 2):
            os.dup2(self.output.fileno(), number)
        sys.stdout, sys.stderr = open(1, "w"), open(2, "w")
        warnings.simplefilter("ignore")
        torch.set_num_threads(1)
        Trainer(pipe, *place).serve()

    def begin(self, number):
        self.pipe.send(number)

    def says(self, beginning):
        assert self.pipe.poll(3 * PATIENCE)
        try:
            line = self.pipe.recv()
        except EOFError:
            line = ""
        assert line.startswith(beginning), line + self.printed()
        return line.removeprefix(beginning).strip()

    def printed(self):
        self.output.seek(0)
        return self.output.read()

    def end(self):
        self.pipe.send(None)
        self.process.join(3 * PATIENCE)
        assert (self.process.exitcode, self.printed()) == (0, "")
        assert self.pipe.poll(0)
        with pytest.raises(EOFError):
            self.pipe.recv()


@pytest.fixture
def crew(broker, tmp_path):
    """Starts ranks that wait until they are told to begin. The arguments are
    the numbers of the ranks, and the one that waits to be killed."""
    started = []

    def start_crew(name, numbers, killed=None):
        (tmp_path / name).mkdir()
        ranks = []
        for i, number in enumerate(numbers):
            ranks.append(Rank(tmp_path / name, number, DEATH if i == killed else None))
        started.extend(ranks)
        for rank in ranks:
            rank.says("is ready")
        return ranks

    yield start_crew
    for rank in started:
        rank.process.kill()
        rank.process.join()
        rank.pipe.close()
        rank.output.close()


def result(ranks):
    """Returns the result, which must be the same on all ranks."""
    (said,) = {rank.says("ends with") for rank in ranks}
    for rank in ranks:
        rank.says("is out")
    return said


def test_training_with_a_replaced_rank_ends_with_the_same_bits(broker, c, crew):
    undisturbed = crew("undisturbed", range(WORLD))
    for rank in undisturbed:
        rank.begin(0)
    expected = result(undisturbed)
    for rank in undisturbed:
        rank.end()
    fsdp.dcp.remove("run", client=c)

    first, killed, last, spare = crew("disturbed", [0, 1, 2, 1], killed=1)
    for rank in (first, killed, last):
        rank.begin(0)
    killed.says("waits")
    assert c.status()["slots_limbo"] > 0  # the memory that the ranks share
    killed.process.kill()
    for rank in (first, last):
        said = rank.says("is told:")
        assert "rank 1" in said and str(killed.process.pid) in said
        rank.says("is out")
    until(lambda: c.status()["slots_limbo"] == 0, "the memory of the group is freed")
    ranks = first, spare, last
    for rank in ranks:
        rank.begin(1)
    for rank in ranks:
        assert rank.says("goes on after step") == str(DEATH)
    assert result(ranks) == expected
    for rank in ranks:
        rank.end()
