"""Tests that a rank of an FSDP2 training can be killed and replaced. The other
ranks are told, and a new group continues from the checkpoint to the same bits.
"""

import pytest

pytest.importorskip("torch.distributed.fsdp")

import fsdp.dcp  # noqa: E402
from conftest import PATIENCE, start, until  # noqa: E402

WORLD, STEPS, DEATH = 3, 5, 2

# A rank trains until all steps are done, in one group after another; it reads
# the number of its group from stdin. Its arguments are the directory, the rank,
# and the step in whose backward pass the rank stops and waits to be killed ("-"
# for none).
RANK = """
import datetime, hashlib, sys
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.fsdp import fully_shard
import fsdp.dcp, fsdp.distributed, fsdp.fsdp2

directory, rank, last = sys.argv[1], int(sys.argv[2]), sys.argv[3]
torch.set_num_threads(1)

def say(*words):
    print(*words, flush=True)

def make_model():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Sequential(nn.Linear(31, 31), nn.Tanh()) for _ in range(3)])
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    fsdp.fsdp2.use(model)
    return model

def await_death(grad):
    say("waits")
    sys.stdin.read()

def train(number):
    dist.init_process_group(
        "fsdpd", init_method=f"file://{directory}/store.{number}", rank=rank,
        world_size=%(world)d, timeout=datetime.timedelta(seconds=%(seconds)d),
    )
    global model
    model = make_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    done = 0
    if number > 0:
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "done": 0}
        dcp.load(state, storage_reader=fsdp.dcp.Reader("run"))
        set_state_dict(
            model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optimizer"]
        )
        done = state["done"]
        say("goes on after step", done)
    for step in range(done, %(steps)d):
        torch.manual_seed(100 * step + rank)
        out = model(torch.randn(8, 31))
        if str(step) == last:
            out.register_hook(await_death)
        out.square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        weights, moments = get_state_dict(model, optimizer)
        state = {"model": weights, "optimizer": moments, "done": step + 1}
        dcp.save(state, storage_writer=fsdp.dcp.Writer("run"))
    whole = [p.full_tensor().detach() for p in model.parameters()]
    say("ends with", hashlib.sha256(b"".join(p.numpy().tobytes() for p in whole)).hexdigest())

say("is ready")
for line in sys.stdin:
    try:
        train(int(line))
    except fsdp.distributed.BackendError as error:
        say("is told:", error)
        model.reset_iter_state()  # which drops what was gathered
    dist.destroy_process_group()
    say("is out")
""" % {"world": WORLD, "steps": STEPS, "seconds": 15 * PATIENCE}


class Rank:
    def __init__(self, broker, directory, rank, last="-"):
        options = "-W", "ignore"
        arguments = [str(directory), str(rank), str(last)]
        self.process = start(broker, RANK, *options, arguments=arguments)

    def begin(self, number):
        self.process.stdin.write(f"{number}\n")
        self.process.stdin.flush()

    def says(self, beginning):
        line = self.process.stdout.readline()
        assert line.startswith(beginning), line + (line or self.process.stderr.read())
        return line.removeprefix(beginning).strip()

    def end(self):
        out, err = self.process.communicate(timeout=3 * PATIENCE)
        assert (self.process.returncode, out, err) == (0, "", "")


@pytest.fixture
def crew(broker, tmp_path):
    """Starts ranks that wait until they are told to begin. The arguments are
    the numbers of the ranks, and the one that waits to be killed."""
    started = []

    def start_crew(name, numbers, killed=None):
        (tmp_path / name).mkdir()
        ranks = []
        for i, number in enumerate(numbers):
            last = DEATH if i == killed else "-"
            ranks.append(Rank(broker, tmp_path / name, number, last))
        started.extend(ranks)
        for rank in ranks:
            rank.says("is ready")
        return ranks

    yield start_crew
    for rank in started:
        rank.process.kill()
        rank.process.communicate()


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
