"""Compares our sharding, divide factors and reductions with those of PyTorch's
FSDP2.

The factors and the sizes of shards are two files of numbers. This suite
compares them with torch; unit/test_divide and unit/test_shard compare them with
our C. Run this file to write the files again. Gathers and reductions are
compared in four processes, each of which is a rank of fully_shard() over gloo
and a rank of a communicator.
"""

import itertools
import pathlib
import random
import types

import pytest
import torch
import torch.distributed as dist
from torch import nn

import comm
import crowd

torch_fsdp = pytest.importorskip("torch.distributed.fsdp")
pytestmark = pytest.mark.filterwarnings("ignore")
collectives = pytest.importorskip(
    "torch.distributed.fsdp._fully_shard._fsdp_collectives"
)

GOLDEN = pathlib.Path(__file__).parents[2] / "tests" / "unit" / "collective"
DTYPES = {
    "f16": torch.float16,
    "bf16": torch.bfloat16,
    "f32": torch.float32,
    "f64": torch.float64,
}


def group_of(size):
    return types.SimpleNamespace(size=lambda: size) if size > 1 else None


def factors_of_torch():
    """Returns lines of dtype, shards, replicas, factor (0 for none) and whether
    SUM is forced, followed by pre, post, premul and the two operations. There
    is no line for cases in which we differ on purpose (docs/fsdp.md: one shard
    with a factor, a factor of 1)."""
    said = types.SimpleNamespace(
        SUM=("sum", 1), AVG=("avg", 1), PREMUL_SUM=lambda by: ("premul_sum", by)
    )
    kept, collectives.ReduceOp = collectives.ReduceOp, said
    worlds = [*itertools.product((1, 2, 3, 12, 64), (1, 2, 3))]
    simple = [(s, 1) for s in range(1, 129) if (s, 1) not in worlds]
    cases = itertools.product([*worlds, *simple], DTYPES, (False, True))
    try:
        for (s, r), dtype, force in cases:
            factors = {0, 2, 3.5, 7, s, s * r} if (s, r) in worlds else {0}
            for factor in sorted(factors):
                if factor == 1 or (factor and s == 1):
                    continue
                pre, post, scatter, reduce = collectives._get_gradient_divide_factors(
                    group_of(s), group_of(r), DTYPES[dtype], "cpu", factor or None, force
                )
                yield (
                    f"{dtype} {s} {r} {factor:g} {int(force)} {pre or 1:g} {post or 1:g} "
                    f"{scatter[1]!r} {scatter[0]} {reduce[0]}"
                )
    finally:
        collectives.ReduceOp = kept


def shards_of_torch():
    """Returns lines of the size, the number of ranks, the padded size, and the
    size on each rank."""
    from torch.distributed.fsdp._fully_shard._fsdp_common import (
        _chunk_with_empty,
        _get_dim0_padded_size,
    )

    for size in (1, 2, 3, 5, 7, 8, 17, 64, 100, 257):
        for ranks in (1, 2, 3, 4, 7, 16, 64):
            chunks = _chunk_with_empty(torch.empty(size, 1), ranks, dim=0)
            padded = _get_dim0_padded_size(torch.Size([size, 1]), ranks)[0]
            sizes = " ".join(str(chunk.shape[0]) for chunk in chunks)
            yield f"{size} {ranks} {padded} {sizes}"


FILES = {"divide.golden": factors_of_torch, "shard.golden": shards_of_torch}


@pytest.mark.parametrize("name", FILES)
def test_golden_files_of_unit_tests_equal_the_values_of_torch(name):
    assert (GOLDEN / name).read_text().splitlines() == list(FILES[name]())


# --- what is gathered and reduced ---------------------------------------------

WORLD = 4
SHAPES = {"a": (10, 3), "b": (4,), "c": (2, 5), "d": (7, 4)}
CASES = {
    "plain": {},
    "factor": {"factor": 2.0, "force": True},
    "forced": {"force": True},
    "bf16": {"param": torch.bfloat16, "reduce": torch.float32},
    "f16": {"param": torch.float16},
    "narrow": {"reduce": torch.bfloat16},
    "f64": {"stored": torch.float64},
    "replicas": {"shards": 2},
    "replicas_factor": {"shards": 2, "factor": 8.0, "force": True},
    "replicas_partial": {"shards": 2, "partial": True},
    "replicas_partial_bf16": {"shards": 2, "partial": True, "reduce": torch.bfloat16},
    "second": {"dims": {"d": 1}},
}


def random_case(seed):
    chance = random.Random(seed)
    shards = chance.choice([WORLD, WORLD, 2])
    shapes, dims = {}, {}
    for key in "abcdef"[: chance.randint(1, 6)]:
        shape = tuple(chance.randint(1, 9) for _ in range(chance.randint(1, 3)))
        shapes[key] = shape
        even = [i for i in range(1, len(shape)) if shape[i] % shards == 0]
        if even and chance.randrange(2):
            dims[key] = chance.choice(even)
    case = {"shapes": shapes, "dims": dims, "shards": shards}
    case["stored"] = chance.choice([torch.float32, torch.float32, torch.float64])
    low = [None, torch.bfloat16, torch.float16, torch.float32]
    case["param"], case["reduce"] = chance.choice(low), chance.choice(low)
    case["force"] = chance.randrange(2) == 1
    if case["force"] and chance.randrange(2):
        case["factor"] = chance.choice([0.5, 2.0, 4.0, 16.0])
    return case


CASES |= {f"seed{seed}": random_case(seed) for seed in range(16)}


class Product(nn.Module):
    """A model whose gradients are the factors of its products."""

    def __init__(self, values):
        super().__init__()
        for key, value in values.items():
            setattr(self, key, nn.Parameter(value))

    def forward(self, grads):
        return sum((getattr(self, k) * g).sum() for k, g in grads.items())


def whole_numbers(seed, case, dtype):
    """Returns whole numbers. Their sums, and quarters of these, are exact in
    every dtype and order."""
    torch.manual_seed(seed)
    shapes = case.get("shapes", SHAPES)
    return {k: torch.randint(-8, 8, s).to(dtype) for k, s in shapes.items()}


def sharded_by_torch(params, case):
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Shard

    model = Product(params)
    names = {id(p): k for k, p in model.named_parameters()}
    shards, dims = case.get("shards", WORLD), case.get("dims", {})
    shape = (WORLD // shards, shards) if shards < WORLD else (WORLD,)
    torch_fsdp.fully_shard(
        model,
        mesh=init_device_mesh("cpu", shape, mesh_dim_names=("r", "s")[-len(shape) :]),
        mp_policy=torch_fsdp.MixedPrecisionPolicy(
            param_dtype=case.get("param"),
            reduce_dtype=case.get("reduce"),
            cast_forward_inputs=False,
        ),
        reshard_after_forward=False,
        shard_placement_fn=lambda p: Shard(dims.get(names[id(p)], 0)),
    )
    if "factor" in case:
        model.set_gradient_divide_factor(case["factor"])
    if case.get("force"):
        model.set_force_sum_reduction_for_comms(True)
    return model


def assert_equal(keys, mine, theirs):
    for key, a, b in zip(keys, mine, theirs, strict=True):
        assert a.dtype == b.dtype and torch.equal(a, b), (key, a, b)


def check_case(path, rank, name):
    case = CASES[name]
    stored = case.get("stored", torch.float32)
    params = whole_numbers(100, case, stored)
    grads = [whole_numbers(i * WORLD + rank, case, case.get("param") or stored) for i in (0, 1)]
    model = sharded_by_torch(params, case)
    ours = comm.Rank(
        path,
        name,
        WORLD,
        rank,
        params,
        n_shards=case.get("shards", WORLD),
        dims=case.get("dims", {}),
        param_dtype=case.get("param"),
        reduce_dtype=case.get("reduce"),
    )
    shards = [p.detach().to_local() for p in model.parameters()]
    for i, theirs in enumerate(shards):
        shard = ours.shard(i)
        assert shard.shape[: shard.n_dims] == list(theirs.shape)
    ours.commit(shards)

    options = {"is_sum_forced": case.get("force", False)}
    if "factor" in case:
        options |= {"has_factor": True, "factor": case["factor"]}
    for i, microbatch in enumerate(grads):
        loss = model(microbatch)  # the parameters stay unsharded
        whole = [getattr(model, key).detach() for key in params]
        assert_equal(params, ours.gathered(), whole)
        is_partial = case.get("partial", False) and i == 0
        model.set_requires_all_reduce(not is_partial)
        loss.backward()
        options["no_all_reduce"] = is_partial
        options["accumulates"] = i > 0 and not case.get("partial", False)
        reduced = ours.reduced(list(microbatch.values()), **options)
        if is_partial:  # the sums wait for those of the second microbatch
            continue
        assert_equal(params, reduced, [p.grad.to_local() for p in model.parameters()])
    dist.barrier()
    ours.leave()


@pytest.fixture(scope="module")
def said(broker):
    def case(name):
        return lambda: check_case(broker.path, dist.get_rank(), name)

    return crowd.run("gloo", WORLD, {name: case(name) for name in CASES})


@pytest.mark.parametrize("case", CASES)
def test_shards_gathers_and_reductions_equal_those_of_fully_shard(said, case):
    crowd.check(said, case)


if __name__ == "__main__":
    for name, lines in FILES.items():
        (GOLDEN / name).write_text("".join(f"{line}\n" for line in lines()))
