"""Compares fsdp.plan() with PyTorch's own bucketing passes, on random graphs.

Each planned graph is also computed, on all ranks at once. Its results and the
bytes that it sends must be those of torch's graph after its passes, and of the
graph before.
"""

import contextlib

import pytest
import torch
import torch.distributed as dist
from torch._inductor.fx_passes import bucketing
from torch.distributed.device_mesh import init_device_mesh

import fsdp
import fsdp.graph
import lockstep
from inductor import CAP_MB, MODES, WORLD, bucketed_by_torch, buckets_of
from inductor import collectives, compare, run_sorted_passes, world  # noqa: F401
from random_graph import Builder, Group, random_module

pytestmark = pytest.mark.filterwarnings("ignore")
SMALL_MB = 0.0003  # enough for a few gathers of a shard


@pytest.fixture(scope="module")
def groups(world):  # noqa: F811
    """Returns two groups of all ranks, and the rows and columns of a mesh of 2
    by 2."""
    every = list(range(WORLD))
    names = [dist.new_group(every).group_name for _ in range(2)]
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    shard, replicate = mesh["shard"].get_group(), mesh["replicate"].get_group()
    return [
        Group(names[0], [every]),
        Group(names[1], [every]),
        Group(shard.group_name, [[0, 1], [2, 3]]),
        Group(replicate.group_name, [[0, 2], [1, 3]]),
    ]


def mode_of(seed):
    return ("default", "custom_ops", "coalesced")[seed // 5 % 3]


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_have_the_buckets_of_torch(groups, seed):
    module = random_module(seed, groups)
    compare(module, mode_of(seed))
    compare(module, mode_of(seed), cap_mb=SMALL_MB)


@pytest.mark.parametrize("seed", range(30, 35))
def test_dtypes_share_a_bucket_as_in_torch(groups, seed):
    """If torch cannot make a view that a bucket needs, there must be no plan
    either."""
    dtypes = (torch.float32, torch.bfloat16, torch.float64)
    module, mode = random_module(seed, groups, dtypes=dtypes), "custom_ops_multidtype"
    try:
        bucketed_by_torch(module, mode, CAP_MB)
    except RuntimeError as refusal:
        assert "must be divisible" in str(refusal)
        with pytest.raises(fsdp.Invalid, match="begins at byte"):
            fsdp.plan(fsdp.graph.from_fx(module), mode=mode, faithful=True)
    else:
        compare(module, mode)


# --- the passes without FSDP's filters ----------------------------------------


def bucketed_without_filters(module, cap_mb):
    """Returns for each kind the buckets of bucket_all_gather_by_mb() and the
    like."""
    cap = lambda _: cap_mb  # noqa: E731
    found = {
        "all_gather": bucketing.bucket_all_gather_by_mb(module, cap, None, "default"),
        "reduce_scatter": bucketing.bucket_reduce_scatter_by_mb(module, cap, None, "default"),
        "all_reduce": bucketing.bucket_all_reduce_by_mb(module, cap),
    }
    return {k: [[n.name for n in nodes] for nodes in v] for k, v in found.items()}


def planned_alone(document, kind, cap_mb):
    """Returns the buckets of one kind. Collectives of other kinds are marked as
    not FSDP's."""
    for node in document["nodes"]:
        if "group" in node:
            node["fsdp"] = node["kind"] == kind
    plan = fsdp.plan(document, cap_mb=cap_mb, faithful=True)
    return [names for _, names in buckets_of(plan)]


@pytest.mark.parametrize("seed", range(35, 45))
def test_collectives_that_are_tagged_have_the_buckets_of_torch(groups, seed):
    module = random_module(seed, groups)
    document = fsdp.graph.from_fx(module)
    for cap_mb in (CAP_MB, SMALL_MB):
        for kind, expected in bucketed_without_filters(module, cap_mb).items():
            assert planned_alone(document, kind, cap_mb) == expected


# --- what a planned graph computes --------------------------------------------


@contextlib.contextmanager
def as_rank(rank, groups):
    """Makes this process the rank of that number in each group, which torch's
    merge asks for."""
    kept, teams = dist.get_rank, {group.name: group.teams for group in groups}

    def get_rank(group=None):
        if group is None:
            return rank
        return next(t for t in teams[group.group_name] if rank in t).index(rank)

    dist.get_rank = get_rank
    try:
        yield
    finally:
        dist.get_rank = kept


def merged_for_all_ranks(module, groups, mode, cap_mb):
    modules = []
    for rank in range(WORLD):
        with as_rank(rank, groups):
            modules.append(bucketed_by_torch(module, mode, cap_mb)[1])
    return modules


def as_bits(outputs):
    return [[lockstep.bits(value) for value in rank] for rank in zip(*outputs)]


@pytest.mark.parametrize("seed", range(45, 60))
def test_messages_and_results_equal_those_of_torch_bit_for_bit(groups, seed):
    module, mode = random_module(seed, groups), mode_of(seed)
    modules = merged_for_all_ranks(module, groups, mode, CAP_MB)
    theirs, mine = (lockstep.Ranks(WORLD, groups) for _ in range(2))
    inputs = mine.inputs(module)
    expected = lockstep.run_modules(modules, theirs, inputs)
    plan = fsdp.plan(fsdp.graph.from_fx(module), mode=mode, cap_mb=CAP_MB, faithful=True)
    outputs = lockstep.run_document(plan["graph"], module, mine, inputs)
    assert as_bits(outputs) == as_bits(expected)
    assert mine.wire == theirs.wire


@pytest.mark.parametrize("seed", range(60, 80))
def test_every_plan_computes_the_same_as_its_graph(groups, seed):
    """Also tests padding, several caps, and buckets whose members need each
    other."""
    module, mode = random_module(seed, groups), MODES[seed // 5 % 4]
    ranks = lockstep.Ranks(WORLD, groups)
    inputs = ranks.inputs(module)
    expected = as_bits(lockstep.run_modules([module] * WORLD, ranks, inputs))
    for cap_mb in (CAP_MB, [0.0001, 0.001]):
        plan = fsdp.plan(fsdp.graph.from_fx(module), mode=mode, cap_mb=cap_mb)
        outputs = lockstep.run_document(plan["graph"], module, ranks, inputs)
        assert as_bits(outputs) == expected


# --- the default, and why it differs ------------------------------------------


@pytest.mark.parametrize("seed", range(80, 90))
def test_by_default_all_collectives_that_torch_merges_are_merged(groups, seed):
    module = random_module(seed, groups)
    merged, after = bucketed_by_torch(module, "default", CAP_MB)
    plan = fsdp.plan(fsdp.graph.from_fx(module))
    theirs = collectives(fsdp.graph.from_fx(after))
    assert len(collectives(plan["graph"])) <= len(theirs)
    members = [name for _, names in buckets_of(plan) for name in names]
    assert len(members) == len(set(members))
    assert {name for _, names in merged for name in names} <= set(members)
    assert {left["why"] for left in plan["left"]} <= {"not fsdp"}


def ancestors(document):
    """Returns the names of all ancestors of each node."""
    found = {}
    for node in document["nodes"]:
        inputs = node.get("inputs", [])
        found[node["name"]] = set(inputs).union(*(found[name] for name in inputs))
    return found


def key_of(bucket):
    return tuple(bucket[field] for field in ("kind", "group", "reduce", "dtype"))


def name_of(bucket):
    return bucket["merged"] or bucket["members"][0]["node"]


@pytest.mark.parametrize("seed", range(90, 105))
@pytest.mark.parametrize("cap_mb", [CAP_MB, SMALL_MB])
def test_by_default_a_bucket_ends_for_a_reason(groups, seed, cap_mb):
    """Of two neighbouring buckets with the same key, either the first has no
    space for the next member, or that member needs the first bucket. If no
    member needs another one, the buckets are those of torch."""
    module = random_module(seed, groups)
    plan = fsdp.plan(fsdp.graph.from_fx(module), cap_mb=cap_mb)
    needs, buckets = ancestors(plan["graph"]), plan["buckets"]
    has_needs = False
    for one, other in zip(buckets, buckets[1:]):
        if key_of(one) != key_of(other):
            continue
        is_needed = name_of(one) in needs[name_of(other)]
        has_needs |= is_needed
        size = one["bytes"] + other["members"][0]["bytes"]
        assert is_needed or size > cap_mb * 2**20
    if not has_needs:
        expected, _ = bucketed_by_torch(module, "default", cap_mb)
        assert [bucket for bucket in buckets_of(plan) if len(bucket[1]) > 1] == expected


# --- what differs from torch, also with faithful=True --------------------------


def test_a_pass_sorts_its_graph_for_the_next(groups):
    """The reduce-scatters become one collective after the last all-reduce. The
    all-reduce that needs one of them is sorted after it, and so is no longer
    between the two equal ones."""
    build = Builder(0, groups)
    group = groups[0]
    p, q = (build.placeholder(8, 1, torch.float32) for _ in range(2))
    build.gather(p, group)
    build.reduce(p, group, "avg")
    build.reduce(build.scatter(p, group), group, "sum")
    build.reduce(q, group, "avg")
    build.scatter(q, group)
    module = build.module()
    theirs, _ = bucketed_by_torch(module, "default", CAP_MB)
    assert [kind for kind, _ in theirs] == ["reduce_scatter"]
    mine = buckets_of(fsdp.plan(fsdp.graph.from_fx(module), faithful=True))
    assert [kind for kind, _ in mine] == ["reduce_scatter", "all_reduce"]
    assert mine == bucketed_by_torch(module, "default", CAP_MB, run_sorted_passes)[0]


def test_mixed_dtypes_need_padding(groups):
    """Where torch makes an impossible view, a plan that is not faithful adds
    padding."""
    build = Builder(0, groups)
    for rows, dtype in [(3, torch.bfloat16), (2, torch.float32)]:
        build.gather(build.placeholder(rows, 1, dtype), groups[0])
    module = build.module()
    mode = "custom_ops_multidtype"
    with pytest.raises(RuntimeError, match="must be divisible"):
        bucketed_by_torch(module, mode, CAP_MB)
    document = fsdp.graph.from_fx(module)
    with pytest.raises(fsdp.Invalid, match="begins at byte 6"):
        fsdp.plan(document, mode=mode, faithful=True)
    (bucket,) = fsdp.plan(document, mode=mode)["buckets"]
    assert [member["offset"] for member in bucket["members"]] == [0, 16]
