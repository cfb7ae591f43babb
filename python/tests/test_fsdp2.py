"""Tests FSDP2 in memory that the ranks share (fsdp.fsdp2.use()) against FSDP2
on the same backend without it. Both must have the same bits, since they add in
the same order.
"""

import functools
import logging

import pytest
import torch
import torch.distributed as dist
from torch import nn

import crowd
import fsdp
import fsdp.distributed

torch_fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.filterwarnings("ignore")

import fsdp.fsdp2  # noqa: E402
from training import (  # noqa: E402
    make_model,
    mesh_of,
    shard,
    sharded_cases,
    train_sharded,
)

# --- the same bits ------------------------------------------------------------


def trained(case, backend="fsdpd", uses=True, prepare=lambda model: None):
    model = shard(make_model(nn.LayerNorm), backend, case)
    prepare(model)
    if uses:
        fsdp.fsdp2.use(model)
    return train_sharded(model, case)


def assert_same(ours, theirs):
    for mine, their in zip(sum(ours, []), sum(theirs, []), strict=True):
        assert torch.equal(mine, their)


def check(case, prepare=lambda model: None):
    ours = trained(case, prepare=prepare)
    assert_same(ours, trained(case, uses=False, prepare=prepare))
    if dist.get_world_size() == 2:
        assert_same(ours, trained(case, "gloo", uses=False, prepare=prepare))


def prefetch(model):
    """Begins two gathers before the values of the first are copied out."""
    model[0].set_modules_to_forward_prefetch([model[1], model[2]])
    model[2].set_modules_to_backward_prefetch([model[1], model[0]])


def gather_asynchronously(model):
    model._set_unshard_async_op(True)
    prefetch(model)


def reduce_apart(model):
    model.set_separate_reduce_scatter_group(True)


def divide(model):
    model.set_gradient_divide_factor(8.0)


def divide_after_a_sum(model):
    divide(model)
    model.set_force_sum_reduction_for_comms(True)


def a_factor_is_multiplied_before_the_sum():
    """The product is exact for a power of two. Without use() fsdpd can only
    sum."""
    ours = trained({}, prepare=divide)
    assert_same(ours, trained({}, uses=False, prepare=divide_after_a_sum))


def parameters_may_be_sharded_along_another_dimension():
    def trained_across(uses):
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(31, 48, bias=False), nn.Linear(48, 31))
        torch_fsdp.fully_shard(
            model,
            mesh=mesh_of("fsdpd", dist.get_world_size()),
            shard_placement_fn=lambda p: torch.distributed.tensor.Shard(
                1 if p.shape == (31, 48) else 0
            ),
        )
        if uses:
            fsdp.fsdp2.use(model)
        return train_sharded(model, {})

    assert_same(trained_across(True), trained_across(False))


def weights_may_change_between_gathers():
    """No rank may overwrite what another one still reads, even without a
    reduction."""
    model = nn.Linear(4096, 16, bias=False)
    mesh = mesh_of("fsdpd", dist.get_world_size())
    torch_fsdp.fully_shard(model, mesh=mesh, reshard_after_forward=True)
    fsdp.fsdp2.use(model)
    with torch.no_grad():
        for i in range(100):
            model.weight.to_local().fill_(i)
            assert torch.equal(model(torch.ones(1, 4096)), torch.full((1, 16), 4096.0 * i))


def gradients_stay_valid_when_buffers_are_reused():
    """A reduced gradient belongs to the rank, and stays when buffers are used
    again."""
    model = nn.Linear(8, 8, bias=False)
    torch_fsdp.fully_shard(model, mesh=mesh_of("fsdpd", dist.get_world_size()))
    fsdp.fsdp2.use(model)
    kept = []
    for i in range(5):
        (model(torch.ones(1, 8)).sum() * i).backward()
        kept.append(model.weight.grad.to_local())
        model.weight.grad = None
    assert [grad.unique().tolist() for grad in kept] == [[0], [1], [2], [3], [4]]


# --- memory -------------------------------------------------------------------


def group_of(model):
    return model._get_fsdp_state()._fsdp_param_groups[0]._all_gather_process_group


def sizes(group, purpose):
    return sorted(buffer.nbytes for buffer in group.pools[purpose]._buffers)


def all_layers_share_a_few_buffers():
    world, width = dist.get_world_size(), 64
    group = dist.new_group(backend="fsdpd")
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu", mesh=list(range(world)))
    sizes_of_layers = (width, 2 * width, width, 4 * width, width)
    layers = [nn.Linear(width, size, bias=False) for size in sizes_of_layers]
    for layer in layers:
        torch_fsdp.fully_shard(layer, mesh=mesh, reshard_after_forward=True)
        fsdp.fsdp2.use(layer)
    for _ in range(3):
        for layer in layers:
            layer(torch.ones(1, width)).sum().backward()
        assert group_of(layers[0]) is group
        largest = 4 * width * width * 4
        assert sizes(group, "gather") == [largest]
        assert sizes(group, "reduction") == [largest * world]
    for purpose in ("gather", "reduction"):
        said = [None] * world
        mine = [buffer._id for buffer in group.pools[purpose]._buffers]
        dist.all_gather_object(said, mine, group)
        assert said == [mine] * world  # all ranks use the same memory
    dist.destroy_process_group(group)
    assert sizes(group, "gather") == sizes(group, "reduction") == []


def all_ranks_get_an_error_if_memory_is_exhausted():
    group = dist.new_group(backend="fsdpd")
    world = dist.get_world_size()
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu", mesh=list(range(world)))
    model = nn.Linear(64, 64)
    torch_fsdp.fully_shard(model, mesh=mesh)
    fsdp.fsdp2.use(model)
    with pytest.MonkeyPatch.context() as patch:
        small = fsdp.connect(budget=4096)
        patch.setattr("fsdp._shared.default", lambda: small)
        patch.setattr(group, "seconds", 2)
        what = fsdp.NoRoom if dist.get_rank() == 0 else fsdp.distributed.BackendError
        with pytest.raises(what, match="budget"):
            model(torch.ones(1, 64))
    dist.barrier(group)  # the group can still be used
    model.reset_iter_state()
    model(torch.ones(1, 64))
    small.close()


# --- what is refused ----------------------------------------------------------


def ranks_that_run_different_modules_get_an_error():
    group = dist.new_group(backend="fsdpd")
    world = dist.get_world_size()
    mesh = dist.device_mesh.DeviceMesh.from_group(group, "cpu", mesh=list(range(world)))
    models = nn.Linear(16, 16), nn.Linear(16, 32)
    for model in models:
        torch_fsdp.fully_shard(model, mesh=mesh)
        fsdp.fsdp2.use(model)
    with pytest.raises(fsdp.distributed.BackendError, match="all ranks must run the same modules"):
        models[dist.get_rank() == 1](torch.ones(1, 16))


def a_model_without_shards_is_refused():
    with pytest.raises(fsdp.Invalid, match="fully_shard"):
        fsdp.fsdp2.use(nn.Linear(2, 2))


def groups_of_other_backends_gather_by_themselves():
    said = []
    handler = logging.Handler()
    handler.emit = lambda record: said.append(record.getMessage())
    logging.getLogger("fsdp").addHandler(handler)
    try:
        assert_same(trained({}, "gloo"), trained({}, "gloo", uses=False))
    finally:
        logging.getLogger("fsdp").removeHandler(handler)
    assert len(said) == 1 and "if their process group is not fsdpd's" in said[0]


def cases(world):
    bits = {name: functools.partial(check, c) for name, c in sharded_cases(world).items()}
    bits |= {
        prepare.__name__: functools.partial(check, {}, prepare)
        for prepare in (prefetch, gather_asynchronously, reduce_apart)
    }
    return bits | {
        case.__name__: case
        for case in (
            a_factor_is_multiplied_before_the_sum,
            parameters_may_be_sharded_along_another_dimension,
            weights_may_change_between_gathers,
            gradients_stay_valid_when_buffers_are_reused,
            all_layers_share_a_few_buffers,
            all_ranks_get_an_error_if_memory_is_exhausted,
            ranks_that_run_different_modules_get_an_error,
            a_model_without_shards_is_refused,
            groups_of_other_backends_gather_by_themselves,
        )
    }


@pytest.fixture(scope="module")
def verdicts(broker):
    return functools.cache(lambda world: crowd.run("gloo", world, cases(world)))


@pytest.mark.parametrize("world, case", [(n, name) for n in (2, 4) for name in cases(n)])
def test_shared_memory_passes_each_case(verdicts, world, case):
    crowd.check(verdicts(world), case)
