"""A model that ranks of torch.distributed train, and several ways to train it.
"""

import functools

import torch
import torch._dynamo.backends.common  # noqa: F401 - before the ranks are forked
import torch.distributed as dist
import torch.distributed.fsdp as torch_fsdp
from torch import nn
from torch.distributed.device_mesh import DeviceMesh

BF16 = {"param_dtype": torch.bfloat16, "reduce_dtype": torch.float32}
STEPS = 3

SHARDED = {
    "plain": {},
    "mixed": {"policy": BF16},
    "bf16": {"policy": {"param_dtype": torch.bfloat16}},
    "kept_whole": {"reshard": False},
    "resharded_to_two": {"reshard": 2},
    "accumulated": {"micro": 3},
    "accumulated_without_sync": {"micro": 3, "sync": False},
    "replicas": {"shards": 2},
    "replicas_mixed": {"shards": 2, "policy": BF16},
    "replicas_accumulated": {"shards": 2, "micro": 2, "sync": False},
    "clipped": {"clip": 0.1},
    "compiled": {"compile": True},
}


def sharded_cases(world):
    """Returns the cases that are possible with this number of ranks."""
    return {k: c for k, c in SHARDED.items() if c.get("shards", 0) < world}


def make_model(norm):
    torch.manual_seed(0)
    return nn.Sequential(
        *[
            nn.Sequential(nn.Linear(31, 48), nn.Tanh(), norm(48), nn.Linear(48, 31))
            for _ in range(3)
        ]
    )


def batches(micro):
    """Returns the batches of this rank."""
    torch.manual_seed(1 + dist.get_rank())
    return [[torch.randn(8, 31) for _ in range(micro)] for _ in range(STEPS)]


def train(model, case, set_sync):
    """Returns the losses."""
    if "compile" in case:
        model.compile(backend="aot_eager")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    losses = []
    for batch in batches(case.get("micro", 1)):
        for i, x in enumerate(batch):
            with set_sync(case.get("sync", True) or i == len(batch) - 1):
                loss = (model(x) - x).square().mean()
                loss.backward()
            losses.append(loss.detach())
        if "clip" in case:
            nn.utils.clip_grad_norm_(model.parameters(), case["clip"])
        optimizer.step()
        optimizer.zero_grad()
    return losses


# --- FSDP2 --------------------------------------------------------------------


# groups are made once, because a process can have only a limited number
@functools.cache
def mesh_of(backend, shards):
    world = dist.get_world_size()
    ranks = torch.arange(world).view(world // shards, shards)

    def mine(rows):
        made = [dist.new_group(row.tolist(), backend=backend) for row in rows]
        return next(g for g, row in zip(made, rows) if dist.get_rank() in row)

    groups = [mine(ranks.t()), mine(ranks)]
    if shards == world:
        return DeviceMesh.from_group(groups[1], "cpu", mesh=ranks[0].tolist())
    return DeviceMesh.from_group(groups, "cpu", mesh=ranks, mesh_dim_names=("r", "s"))


class SetSync:
    def __init__(self, model, is_on):
        model.set_requires_gradient_sync(is_on)

    def __enter__(self):
        pass

    def __exit__(self, *_):
        pass


def shard(model, backend, case):
    options = {
        "mesh": mesh_of(backend, case.get("shards", dist.get_world_size())),
        "mp_policy": torch_fsdp.MixedPrecisionPolicy(**case.get("policy", {})),
        "reshard_after_forward": case.get("reshard", True),
    }
    for layer in model:
        torch_fsdp.fully_shard(layer, **options)
    return torch_fsdp.fully_shard(model, **options)


def whole(model):
    return [p.full_tensor().detach() for p in model.parameters()]


def train_sharded(model, case):
    """Returns the losses and the weights."""
    return train(model, case, functools.partial(SetSync, model)), whole(model)
