"""The cost of torch.distributed's collectives with the backend "fsdpd",
compared with gloo.

The ranks are processes, each with a group of both backends, and make the same
calls in turns. Times, CPU time and page faults are those of rank 0, for one
call. A step of FSDP2 is one of a model of 8 layers: forward, backward and SGD.
A gather is that of all its layers, one after another. "shared" is FSDP2 after
fsdp.fsdp2.use(), compared with fsdpd without it. The memory of a step is that
of a rank's process after the steps, which counts its part of shared memory;
each way has processes of its own for it.
"""

import datetime
import multiprocessing
import os
import tempfile

import torch
import torch.distributed as dist

from . import distributed as distributed  # this registers the backend
from ._bench_row import costs, reading

_KIB, _MIB = 1024, 1 << 20
_US = 1000  # ns
_CALLS = 50_000  # us of calls in each turn
_TURNS, _QUICK = 15, 3
_STEPS = 5
_LAYERS, _WIDTH = 8, 1024

# The bytes of the whole tensor, and the goal for ours / gloo.
_ROWS = {
    "barrier": (0, 1),
    "all_reduce_1KiB": (_KIB, 1 / 2),
    "all_reduce_1MiB": (_MIB, 1 / 2),
    "all_reduce_64MiB": (64 * _MIB, 1 / 2),
    "all_gather_1MiB": (_MIB, 1 / 2),
    "all_gather_64MiB": (64 * _MIB, 1 / 2),
    "reduce_scatter_1MiB": (_MIB, 1 / 2),
    "reduce_scatter_64MiB": (64 * _MIB, 1 / 2),
    "broadcast_1MiB": (_MIB, 1 / 2),
    "all_to_all_1MiB": (_MIB, 1 / 2),
    "ping_pong_1KiB": (_KIB, 1),
}


def _call(name, size, group):
    """Return the function that a row measures."""
    kind, world = name.rpartition("_")[0] or name, dist.get_world_size()
    whole = torch.ones(size // 4)
    if kind == "barrier":
        return lambda: dist.barrier(group)
    if kind == "ping_pong":
        return _ping_pong(whole, group)
    part, out = whole[: len(whole) // world].clone(), torch.empty_like(whole)
    return {
        "all_reduce": lambda: dist.all_reduce(whole, dist.ReduceOp.MAX, group),
        "all_gather": lambda: dist.all_gather_into_tensor(whole, part, group),
        "reduce_scatter": lambda: dist.reduce_scatter_tensor(part, whole, group=group),
        "broadcast": lambda: dist.broadcast(whole, 0, group),
        "all_to_all": lambda: dist.all_to_all_single(out, whole, group=group),
    }[kind]


def _ping_pong(tensor, group):
    rank = dist.get_rank()

    def there_and_back():
        if rank == 0:
            dist.send(tensor, 1, group)
            dist.recv(tensor, 1, group)
        elif rank == 1:
            dist.recv(tensor, 0, group)
            dist.send(tensor, 0, group)

    return there_and_back


def _measure(call, n):
    before = reading(_US)
    for _ in range(n):
        call()
    return [(end - start) / n for start, end in zip(before, reading(_US))]


def _in_turns(calls, turns):
    """Return a list of measurements for each call."""
    numbers = [_agreed_number(call) for call in calls]
    rounds = [[_measure(c, n) for c, n in zip(calls, numbers)] for _ in range(turns)]
    return list(zip(*rounds))


def _agreed_number(call):
    """Return how many calls make a turn. Rank 0 decides it."""
    call()
    number = torch.tensor([max(1, round(_CALLS / _measure(call, 2)[0]))])
    dist.broadcast(number, 0)
    return int(number)


# --- FSDP2 --------------------------------------------------------------------

_BACKENDS = {"gloo": "gloo", "fsdpd": "fsdpd", "shared": "fsdpd"}
_FSDP2_ROWS = {
    "fsdp2_step": 1,
    "fsdp2_shared_step": 1,
    "fsdp2_gather": 1 / 2,
    "fsdp2_shared_gather": 1,
}


def _model(way):
    from torch.distributed.device_mesh import DeviceMesh
    from torch.distributed.fsdp import fully_shard

    from .fsdp2 import use

    group = dist.new_group(backend=_BACKENDS[way])
    mesh = DeviceMesh.from_group(group, "cpu", mesh=list(range(dist.get_world_size())))
    layers = [torch.nn.Linear(_WIDTH, _WIDTH) for _ in range(_LAYERS)]
    model = torch.nn.Sequential(*layers)
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    if way == "shared":
        use(model)
    return model


def _step(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    batch = torch.ones(4, _WIDTH)

    def step():
        model(batch).sum().backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _gather(model):
    def gather():
        for layer in model:
            layer.unshard()
            layer.reshard()

    return gather


def _fsdp2_rows(say, turns):
    models = [_model(way) for way in _BACKENDS]
    for kind, make in (("step", _step), ("gather", _gather)):
        gloo, fsdpd, shared = _in_turns([make(model) for model in models], turns)
        say(f"fsdp2_{kind}", (gloo, fsdpd))
        say(f"fsdp2_shared_{kind}", (fsdpd, shared))


def _own_bytes():
    """Return the memory of this process, with its part of shared memory."""
    with open("/proc/self/smaps_rollup") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("Pss:")) * _KIB


# --- ranks --------------------------------------------------------------------


def _collectives(say, turns):
    groups = [dist.new_group(backend=name) for name in ("gloo", "fsdpd")]
    for name, (size, _) in _ROWS.items():
        if turns == _QUICK and size > _MIB:
            continue
        say(name, _in_turns([_call(name, size, group) for group in groups], turns))


def _rows(say, turns):
    _collectives(say, turns)
    _fsdp2_rows(say, turns)


def _memory(way):
    def measure(say, _):
        step = _step(_model(way))
        before = _own_bytes()
        for _ in range(_STEPS):
            step()
        say(way, _own_bytes() - before)

    return measure


def _rank(store, rank, world, socket, work, turns, pipe):
    if socket:
        os.environ["FSDP_SOCKET"] = socket
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"file://{store}",
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=300),
    )
    work(lambda *said: rank or pipe.send(said), turns)
    dist.destroy_process_group()


def _run(sockets, work, turns=0):
    """Yield the results of rank 0. `sockets` are those of the ranks' brokers;
    None is the default broker."""
    fork = multiprocessing.get_context("fork")
    receiver, sender = fork.Pipe(duplex=False)
    with tempfile.TemporaryDirectory() as directory:
        store = os.path.join(directory, "store")
        ranks = [
            fork.Process(target=_rank, args=(store, r, len(sockets), at, work, turns, sender))
            for r, at in enumerate(sockets)
        ]
        for rank in ranks:
            rank.start()
        sender.close()
        try:
            while True:
                yield receiver.recv()
        except EOFError:
            pass
        finally:
            for rank in ranks:
                rank.join()


def _step_memory(world):
    """Return the memory of a step, by the names of the rows."""
    said = dict(row for way in _BACKENDS for row in _run([None] * world, _memory(way)))
    return {
        "fsdp2_step": {"memory": said["fsdpd"], "floor_memory": said["gloo"]},
        "fsdp2_shared_step": {"memory": said["shared"], "floor_memory": said["fsdpd"]},
    }


def results(path, is_quick, second=None):
    """Yield the rows, as fsdp._bench prints them. A quick run only has two
    ranks, and fewer rows. With a `second` broker the rows are collectives of
    two nodes with two ranks each."""
    if path:
        os.environ["FSDP_SOCKET"] = path  # where the ranks connect
    turns = _QUICK if is_quick else _TURNS
    if second:
        for name, (peer, ours) in _run([None, None, second, second], _collectives, turns):
            yield {**costs(f"{name}_2x2", "us", ours, peer), "budget": 1}
        return
    budgets = {name: budget for name, (_, budget) in _ROWS.items()} | _FSDP2_ROWS
    for world in (2,) if is_quick else (2, 4):
        memory = _step_memory(world)
        for name, (peer, ours) in _run([None] * world, _rows, turns):
            row = costs(f"{name}_{world}", "us", ours, peer)
            yield {**row, "budget": budgets[name], **memory.get(name, {})}
