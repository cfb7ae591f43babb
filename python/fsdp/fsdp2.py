"""FSDP2's gathers and reductions in memory that the ranks of a node share.

>>> import fsdp.distributed, fsdp.fsdp2                   # doctest: +SKIP
>>> dist.init_process_group("fsdpd")                      # doctest: +SKIP
>>> fully_shard(model); fsdp.fsdp2.use(model)             # doctest: +SKIP

A gather has one buffer, which all ranks have mapped: FSDP2 copies each shard to
its offset there, and only a barrier is needed then. For a reduction each rank
copies its gradients to its own part of a buffer, and after a barrier sums its
shard of all parts. docs/python.md describes more.
"""

import logging
import math

import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from torch.distributed.fsdp._fully_shard._fsdp_collectives import (
    DefaultAllGather,
    DefaultReduceScatter,
)
from torch.distributed.fsdp._fully_shard._fsdp_common import FSDPMeshInfo

from ._errors import Invalid
from .distributed import ProcessGroup, fold


def _shares(group):
    return isinstance(group, ProcessGroup) and group.pools and group.size() > 1


class AllGather(DefaultAllGather):
    """The gathers of one group of parameters."""

    def __init__(self, param_group):
        self._of = param_group

    def allocate(self, size, *, dtype, device):
        # The group can change: after reshard_after_forward=2 two ranks gather.
        group, n = self._of._all_gather_process_group, math.prod(size)
        if n == 0 or not _shares(group):
            return super().allocate(size, dtype=dtype, device=device)
        return group.pools["gather"].take(group, n, dtype)

    def __call__(self, output_tensor, input_tensor, group, async_op=False):
        if not _shares(group):
            return super().__call__(output_tensor, input_tensor, group, async_op)
        return dist.barrier(group, async_op=async_op)


class ReduceScatter(DefaultReduceScatter):
    """The reductions of one group of parameters. FSDP2 allocates the input of a
    reduction, then its output, which becomes the gradients, and then makes the
    call."""

    def __init__(self, param_group):
        self._of = param_group
        self._parts = None  # the parts of all ranks, until the call is made

    def allocate(self, size, *, dtype, device):
        group, n = self._of._reduce_scatter_process_group, math.prod(size)
        is_output = self._parts is not None and n * group.size() == self._parts.size(1)
        if n == 0 or is_output or not _shares(group):
            return super().allocate(size, dtype=dtype, device=device)
        buffer = group.pools["reduction"].take(group, n * group.size(), dtype)
        self._parts = buffer.view(group.size(), n)
        return self._parts[group.rank()]

    def __call__(self, output_tensor, input_tensor, group, op, async_op=False):
        parts, self._parts = self._parts, None
        if parts is None:
            return super().__call__(output_tensor, input_tensor, group, op, async_op)
        if op == dist.ReduceOp.PREMUL_SUM:
            input_tensor.mul_(op.__getstate__()[1])
            op = dist.ReduceOp.SUM
        dist.barrier(group)
        blocks = parts.view(group.size(), group.size(), -1)[:, group.rank()]
        fold(op, list(blocks), output_tensor)


def use(model):
    """Let the modules that fully_shard() was given gather and reduce in memory
    that their ranks share.

    All ranks call it, after the last fully_shard() and before the first step.
    """
    groups = [
        (module, group)
        for module in model.modules()
        if isinstance(module, FSDPModule)
        for group in module._get_fsdp_state()._fsdp_param_groups
        if isinstance(group.mesh_info, FSDPMeshInfo)
    ]
    if not groups:
        raise Invalid(
            "no module of this model was given to fully_shard(); call use() after it"
        )
    for module, group in groups:
        module.set_custom_all_gather(AllGather(group))
        module.set_custom_reduce_scatter(ReduceScatter(group))
    others = {group._all_gather_process_group for _, group in groups}
    if any(other.size() > 1 and not _shares(other) for other in others):
        logging.getLogger("fsdp").warning(
            "modules do not share memory if their process group is not fsdpd's or has "
            "several nodes; pass fully_shard() a mesh of the backend fsdpd on one node"
        )
