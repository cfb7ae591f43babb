"""PyTorch's own bucketing passes as the oracle of fsdp.plan().

The graphs are those that torch.compile makes of sharded models, forward and
backward, and random ones. Each goes through Inductor's passes for FSDP
(torch/_inductor/fx_passes/fsdp.py), and through ours. No rank communicates: the
process group is torch's fake one.
"""

import contextlib
import copy
import random

import pytest
import torch

import fsdp
import fsdp.graph

dist = pytest.importorskip("torch.distributed")
fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
passes = pytest.importorskip("torch._inductor.fx_passes.fsdp")

from functorch.compile import make_boxed_func  # noqa: E402
from torch import nn  # noqa: E402
from torch._dynamo.backends.common import aot_autograd  # noqa: E402
from torch._inductor import config  # noqa: E402
from torch._inductor.pattern_matcher import stable_topological_sort  # noqa: E402
from torch._subclasses import FakeTensorMode  # noqa: E402
from torch.distributed.device_mesh import init_device_mesh  # noqa: E402
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

WORLD = 4
MODES = ("default", "custom_ops", "custom_ops_multidtype", "coalesced")
CAP_MB = 2000.0

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.fixture(scope="module", autouse=True)
def world():
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=WORLD)
    yield
    dist.destroy_process_group()


# --- what torch does ----------------------------------------------------------


@contextlib.contextmanager
def recorded(buckets):
    """The buckets that Inductor's passes merge, as (kind, names)."""
    kept = {}

    def replace(name, wrap):
        kept[name] = getattr(passes, name)
        setattr(passes, name, wrap(kept[name]))

    def note(kind, nodes):
        buckets.append((kind, [node.name for node in nodes]))

    def all_of(kind):
        def wrap(merge):
            def record(module, found, mode):
                for nodes in found:
                    note(kind, nodes)
                return merge(module, found, mode)

            return record

        return wrap

    def one(merge):
        def record(graph, nodes):
            note("all_reduce", nodes)
            return merge(graph, nodes)

        return record

    replace("merge_all_gather", all_of("all_gather"))
    replace("merge_reduce_scatter", all_of("reduce_scatter"))
    replace("merge_all_reduce_bucket", one)
    try:
        yield
    finally:
        for name, function in kept.items():
            setattr(passes, name, function)


def bucket_as_torch(module, mode, cap_mb):
    """The three passes in the order of pre_bucket_fsdp_collectives(), which
    itself skips graphs without gathers, as many backwards are."""
    groups, _ = passes.identify_fsdp_groups(module)
    passes.bucket_fsdp_all_gather(module, cap_mb, mode)
    passes.bucket_fsdp_reduce_scatter(module, cap_mb, mode)
    passes.bucket_fsdp_all_reduce(module, cap_mb, groups)
    stable_topological_sort(module.graph)  # as its callers do


def bucketed_by_torch(module, mode, cap_mb):
    """(buckets, the module after the passes)."""
    module = copy.deepcopy(module)
    buckets = []
    # The pass groups all-gathers as this says, and merges as its argument says.
    option = {"aten_distributed_optimizations.bucket_mode": mode}
    with recorded(buckets), config.patch(option):
        bucket_as_torch(module, mode, lambda _: cap_mb)
    return buckets, module


# --- the comparison -----------------------------------------------------------


def buckets_of(plan):
    return [(b["kind"], [m["node"] for m in b["members"]]) for b in plan["buckets"]]


def numel(node):
    count = 1
    for size in node["shape"]:
        count *= size
    return count


def collectives(document):
    """In the order in which they are issued: kind, group, dtype and elements."""
    return [
        (node["kind"], node["group"], node["dtype"], numel(node))
        for node in document["nodes"]
        if "group" in node and node["kind"] != "reduce_scatter_coalesced"
    ]


def compare(module, mode, cap_mb=CAP_MB):
    """Our faithful plan is torch's; returns torch's buckets."""
    expected, after = bucketed_by_torch(module, mode, cap_mb)
    document = fsdp.graph.from_fx(module)
    plan = fsdp.plan(document, mode=mode, cap_mb=cap_mb, faithful=True)
    assert buckets_of(plan) == expected
    # Also as large on the wire, and issued in the same order.
    assert collectives(plan["graph"]) == collectives(fsdp.graph.from_fx(after))
    return expected


# --- graphs that torch compiles -----------------------------------------------


class Whole(nn.Module):
    """A parametrization that gathers a sharded parameter, as SimpleFSDP has it."""

    def __init__(self, dtype):
        super().__init__()
        self.dtype = dtype

    def forward(self, parameter):
        whole = parameter.to(self.dtype) if self.dtype else parameter
        mesh = parameter.device_mesh
        whole = whole.redistribute(placements=[Replicate()] * mesh.ndim)
        grads = [Partial("avg")] * mesh.ndim
        return whole.to_local(grad_placements=grads)


def shard(module, mesh, placements, dtype=None):
    for owner in [m for m in module.modules() if list(m.parameters(recurse=False))]:
        for name, parameter in list(owner.named_parameters(recurse=False)):
            is_norm = isinstance(owner, nn.LayerNorm)
            where = [Replicate()] * mesh.ndim if is_norm else placements
            sharded = distribute_tensor(parameter.detach(), mesh, where)
            setattr(owner, name, nn.Parameter(sharded))
            parametrize.register_parametrization(owner, name, Whole(dtype), unsafe=True)


def compiled(module, *batch, dynamic=None):
    """The graphs of forward and backward."""
    graphs = []

    def keep(graph, _):
        graphs.append(graph)
        return make_boxed_func(graph.forward)

    torch._dynamo.reset()
    backend = aot_autograd(fw_compiler=keep, bw_compiler=keep)
    run = torch.compile(module, backend=backend, fullgraph=True, dynamic=dynamic)
    run(*batch).sum().backward()
    assert len(graphs) == 2
    return graphs


def layers(sizes, norm=False):
    stack = []
    for a, b in zip(sizes, sizes[1:]):
        stack += [nn.Linear(a, b), nn.ReLU()]
        if norm:
            stack.append(nn.LayerNorm(b))
    return nn.Sequential(*stack)


@pytest.fixture(scope="module")
def flat(world):
    return init_device_mesh("cpu", (WORLD,), mesh_dim_names=("shard",))


@pytest.fixture(scope="module")
def three_layers(flat):
    model = layers([16, 16, 16, 16])
    shard(model, flat, [Shard(0)], torch.bfloat16)
    return compiled(model, torch.randn(8, 16, dtype=torch.bfloat16))


@pytest.mark.parametrize("mode", MODES)
def test_a_compiled_model_has_the_buckets_of_torch(three_layers, mode):
    forward, backward = three_layers
    ((kind, names),) = compare(forward, mode)
    assert (kind, len(names)) == ("all_gather", 6)
    ((kind, names),) = compare(backward, mode)
    assert (kind, len(names)) == ("reduce_scatter", 6)
    compare(forward, mode, cap_mb=0.0006)
    assert compare(backward, mode, cap_mb=0) == []


def test_uneven_shards_are_padded_and_bucketed(flat):
    model = layers([6, 10, 7])
    shard(model, flat, [Shard(0)])
    forward, backward = compiled(model, torch.randn(8, 6))
    for graph in forward, backward:
        for mode in MODES:
            compare(graph, mode)


def test_replicas_and_unsharded_norms_are_bucketed(world):
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = layers([8, 8, 8], norm=True)
    shard(model, mesh, [Replicate(), Shard(0)], torch.bfloat16)
    forward, backward = compiled(model, torch.randn(4, 8, dtype=torch.bfloat16))
    kinds = [kind for kind, _ in compare(forward, "default")]
    assert kinds == ["all_gather"]
    kinds = [kind for kind, _ in compare(backward, "default")]
    assert kinds == ["reduce_scatter"]
    # Those over the replicas are of a group without gathers, so not FSDP's.
    left = fsdp.plan(fsdp.graph.from_fx(backward))["left"]
    assert left and {member["why"] for member in left} == {"not fsdp"}


def test_gradients_of_norms_are_all_reduced_in_a_bucket(flat):
    model = layers([8, 8, 8], norm=True)
    shard(model, flat, [Shard(0)])
    module = joined(*compiled(model, torch.randn(4, 8)))
    found = compare(module, "default")
    assert [kind for kind, _ in found] == ["all_gather", "reduce_scatter", "all_reduce"]


def joined(forward, backward):
    """One graph with both: all-reduces are FSDP's by the gathers beside them."""
    graph = copy.deepcopy(forward).graph
    results = next(n for n in graph.nodes if n.op == "output")
    kept = {node.name: node for node in graph.nodes}
    env, outs = {}, list(results.args[0])
    graph.erase_node(results)
    for node in backward.graph.nodes:
        if node.op == "placeholder" and node.name in kept:
            env[node] = kept[node.name]
        elif node.op == "output":
            outs += [env[n] for n in node.args[0] if n is not None]
        else:
            env[node] = graph.node_copy(node, lambda n: env[n])
    graph.output(tuple(outs))
    # Placeholders first, as in every graph.
    first = next(iter(graph.nodes))
    for node in list(graph.nodes):
        if node.op == "placeholder" and node is not first:
            first.append(node)
            first = node
    return torch.fx.GraphModule(torch.nn.Module(), graph)


def test_symbolic_sizes_count_as_they_were_seen(flat):
    model = layers([8, 8])
    shard(model, flat, [Shard(0)])
    forward, backward = compiled(model, torch.randn(6, 8), dynamic=True)
    values = [node.meta.get("val") for node in forward.graph.nodes]
    assert any(isinstance(value, torch.SymInt) for value in values)
    for graph in forward, backward:
        compare(graph, "default")


# --- random graphs ------------------------------------------------------------

C10D = torch.ops._c10d_functional


class Random:
    """Placeholders, operations and collectives that use each other at random."""

    def __init__(self, seed, groups):
        self.random = random.Random(seed)
        self.groups = groups
        self.graph = torch.fx.Graph()
        self.mode = FakeTensorMode()
        self.nodes = []

    def keep(self, node, value):
        node.meta["val"] = value
        self.nodes.append(node)
        return node

    def placeholder(self):
        rows = WORLD * self.random.choice([1, 1, 2, 5])
        dtype = self.random.choice([torch.float32, torch.bfloat16])
        with self.mode:
            value = torch.empty(rows, self.random.choice([1, 3]), dtype=dtype)
        node = self.graph.placeholder(f"p{len(self.nodes)}")
        return self.keep(node, value)

    def call(self, target, *args):
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        with self.mode:
            value = target(*values)
        return self.keep(self.graph.call_function(target, args), value)

    def pick(self):
        """Rather a late one; any of them can be reduced and scattered."""
        return self.random.choice(self.random.choice([self.nodes, self.nodes[-6:]]))

    def operation(self):
        node = self.pick()
        kind = self.random.randrange(4)
        if kind == 0:
            dtype = self.random.choice([torch.float32, torch.bfloat16])
            convert = torch.ops.prims.convert_element_type.default
            return self.call(convert, node, dtype)
        if kind == 1:
            same = [n for n in self.nodes if n.meta["val"].shape == node.meta["val"].shape]
            other = self.random.choice(same)
            return self.call(torch.ops.aten.add.Tensor, node, other)
        return self.call(torch.ops.aten.neg.default, node)

    def collective(self):
        node, group = self.pick(), self.random.choice(self.groups)
        kind = self.random.choice(["gather", "gather", "scatter", "reduce"])
        op = self.random.choice(["sum", "sum", "avg"])
        if kind == "gather":
            start = self.call(C10D.all_gather_into_tensor.default, node, WORLD, group)
        elif kind == "scatter" and node.meta["val"].shape[0] % WORLD == 0:
            args = node, op, WORLD, group
            start = self.call(C10D.reduce_scatter_tensor.default, *args)
        else:
            start = self.call(C10D.all_reduce.default, node, op, group)
        self.nodes.remove(start)
        return self.call(C10D.wait_tensor.default, start)

    def module(self):
        for _ in range(6):
            self.placeholder()
        for _ in range(30):
            self.random.choice([self.operation, self.collective])()
        self.graph.output(tuple(n for n in self.graph.nodes if not n.users))
        return torch.fx.GraphModule(torch.nn.Module(), self.graph)


@pytest.fixture(scope="module")
def groups(world):
    names = [dist.new_group(list(range(WORLD))).group_name for _ in range(2)]
    return [names[0], *names]


@pytest.mark.parametrize("seed", range(30))
def test_random_graphs_have_the_buckets_of_torch(groups, seed):
    module = Random(seed, groups).module()
    mode = ("default", "custom_ops", "coalesced")[seed % 3]
    compare(module, mode)
    compare(module, mode, cap_mb=0.0003)


@pytest.mark.parametrize("seed", range(30, 40))
def test_by_default_no_collective_is_left_that_torch_merges(groups, seed):
    module = Random(seed, groups).module()
    merged, after = bucketed_by_torch(module, "default", CAP_MB)
    plan = fsdp.plan(fsdp.graph.from_fx(module))
    theirs = collectives(fsdp.graph.from_fx(after))
    assert len(collectives(plan["graph"])) <= len(theirs)
    members = [name for _, names in buckets_of(plan) for name in names]
    assert len(members) == len(set(members))
    assert {name for _, names in merged for name in names} <= set(members)
    assert {left["why"] for left in plan["left"]} <= {"not fsdp"}


def test_mixed_dtypes_need_padding(groups):
    """Where torch makes a view that cannot be, a plan that is ours has padding."""
    build = Random(0, groups)
    waits = []
    for rows, dtype in [(3, torch.bfloat16), (2, torch.float32)]:
        with build.mode:
            value = torch.empty(rows, dtype=dtype)
        node = build.keep(build.graph.placeholder(f"p{rows}"), value)
        gather = C10D.all_gather_into_tensor.default
        start = build.call(gather, node, WORLD, groups[0])
        waits.append(build.call(C10D.wait_tensor.default, start))
    build.graph.output(tuple(waits))
    module = torch.fx.GraphModule(torch.nn.Module(), build.graph)
    mode = "custom_ops_multidtype"
    with pytest.raises(RuntimeError, match="must be divisible"):
        bucketed_by_torch(module, mode, CAP_MB)
    document = fsdp.graph.from_fx(module)
    with pytest.raises(fsdp.Invalid, match="begins at byte 6"):
        fsdp.plan(document, mode=mode, faithful=True)
    (bucket,) = fsdp.plan(document, mode=mode)["buckets"]
    assert [member["offset"] for member in bucket["members"]] == [0, 16]
