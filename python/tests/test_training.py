"""Tests DDP and FSDP2 over the backend "fsdpd" against gloo. In each process
the same model is trained with groups of both.

With two ranks there is only one order of adding, so the weights must have the
same bits. With more ranks gloo adds in another order, so they must be equal
except for rounding.
"""

import functools

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import crowd
import fsdp.distributed

pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.filterwarnings("ignore")

from training import SetSync, make_model, shard, sharded_cases, train, train_sharded  # noqa: E402

REPLICATED = {
    "plain": {},
    "accumulated": {"micro": 3, "sync": False},
    "small_buckets": {"options": {"bucket_cap_mb": 0.01}},
    "views": {"options": {"gradient_as_bucket_view": True}},
    "static": {"options": {"static_graph": True}},
    "f16_hook": {"hook": "fp16_compress_hook"},
    "compiled": {"compile": True},
}


def sharded(backend, case):
    return train_sharded(shard(make_model(nn.LayerNorm), backend, case), case)


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


LAYOUTS = "00", "0000", "0011"  # the node of each rank
ON_TWO_NODES = "ddp-plain", "ddp-small_buckets", "fsdp2-mixed", "fsdp2-replicas"


def cases(layout):
    named = {
        f"{kind}-{name}": functools.partial(check, way, case)
        for kind, way, some in (
            ("fsdp2", sharded, sharded_cases(len(layout))),
            ("ddp", replicated, REPLICATED),
        )
        for name, case in some.items()
    }
    return {name: named[name] for name in (named if layout[-1] == "0" else ON_TWO_NODES)}


@pytest.fixture(scope="module")
def verdicts(brokers):
    return functools.cache(lambda at: crowd.run_on(brokers, at, "gloo", cases(at)))


@pytest.mark.parametrize("layout, case", [(l, name) for l in LAYOUTS for name in cases(l)])
def test_training_gives_the_same_result_as_over_gloo(verdicts, layout, case):
    crowd.check(verdicts(layout), case)
