"""DDP and FSDP2 over the backend "fsdpd" beside gloo: in each process the same
model is trained by groups of both.

Two ranks' gradients have one sum, so the weights have the same bits. Of more
ranks gloo adds in another order, so they are within rounding.
"""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh
from torch.nn.parallel import DistributedDataParallel

import crowd
import fsdp.distributed

torch_fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.filterwarnings("ignore")
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
}
REPLICATED = {
    "plain": {},
    "accumulated": {"micro": 3, "sync": False},
    "small_buckets": {"options": {"bucket_cap_mb": 0.01}},
    "views": {"options": {"gradient_as_bucket_view": True}},
    "static": {"options": {"static_graph": True}},
    "f16_hook": {"hook": "fp16_compress_hook"},
}


def make_model(norm):
    torch.manual_seed(0)
    return nn.Sequential(
        *[
            nn.Sequential(nn.Linear(31, 48), nn.Tanh(), norm(48), nn.Linear(48, 31))
            for _ in range(3)
        ]
    )


def batches(micro):
    """Of this rank."""
    torch.manual_seed(1 + dist.get_rank())
    return [[torch.randn(8, 31) for _ in range(micro)] for _ in range(STEPS)]


def train(model, case, set_sync):
    """The losses."""
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


def sharded(backend, case):
    model = make_model(nn.LayerNorm)
    options = {
        "mesh": mesh_of(backend, case.get("shards", dist.get_world_size())),
        "mp_policy": torch_fsdp.MixedPrecisionPolicy(**case.get("policy", {})),
        "reshard_after_forward": case.get("reshard", True),
    }
    for layer in model:
        torch_fsdp.fully_shard(layer, **options)
    torch_fsdp.fully_shard(model, **options)
    losses = train(model, case, functools.partial(SetSync, model))
    return losses, [p.full_tensor().detach() for p in model.parameters()]


# --- DDP ----------------------------------------------------------------------


def replicated(backend, case):
    group = dist.new_group(backend=backend)
    model = DistributedDataParallel(
        make_model(nn.BatchNorm1d), process_group=group, **case.get("options", {})
    )
    if "hook" in case:
        from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

        model.register_comm_hook(group, getattr(default_hooks, case["hook"]))

    def set_sync(is_on):
        return SetSyncDDP(model, is_on)

    return train(model, case, set_sync), [p.detach() for p in model.parameters()]


class SetSyncDDP:
    def __init__(self, model, is_on):
        self.model, self.is_on = model, is_on

    def __enter__(self):
        self.model.require_backward_grad_sync = self.is_on

    __exit__ = SetSync.__exit__


def check(way, case):
    theirs, ours = way("gloo", case), way("fsdpd", case)
    for mine, their in zip(sum(ours, []), sum(theirs, []), strict=True):
        if dist.get_world_size() == 2:
            assert torch.equal(mine, their)
        else:
            rough = case.get("policy") or case.get("hook")
            slack = 1e-2 if rough else 1e-5
            torch.testing.assert_close(mine, their, rtol=slack, atol=slack)


def cases(world):
    fit = {k: c for k, c in SHARDED.items() if c.get("shards", 0) < world}
    named = {f"fsdp2-{name}": functools.partial(check, sharded, c) for name, c in fit.items()}
    return named | {
        f"ddp-{name}": functools.partial(check, replicated, c) for name, c in REPLICATED.items()
    }


@pytest.fixture(scope="module")
def verdicts(broker):
    return functools.cache(lambda world: crowd.run("gloo", world, cases(world)))


@pytest.mark.parametrize("world, case", [(n, name) for n in (2, 4) for name in cases(n)])
def test_training_gives_what_it_gives_over_gloo(verdicts, world, case):
    crowd.check(verdicts(world), case)
