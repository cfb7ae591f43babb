"""Compares fsdp.plan() with PyTorch's own bucketing passes, on graphs that
torch makes.

The graphs are those that torch.compile makes of sharded models, forward and
backward. Each goes through Inductor's passes for FSDP, and through ours.
"""

import copy

import pytest
import torch
import torch.distributed as dist
from functorch.compile import make_boxed_func
from torch import nn
from torch._dynamo.backends.common import aot_autograd
from torch._dynamo.utils import detect_fake_mode
from torch._inductor import config
from torch._inductor.virtualized import V
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import Partial, Replicate, Shard, distribute_tensor
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn.utils import parametrize

import fsdp
import fsdp.graph
from inductor import MODES, WORLD, bucketed_by_torch, buckets_of, compare
from inductor import world  # noqa: F401

pytestmark = pytest.mark.filterwarnings("ignore")


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
    """Returns the graphs of the forward and the backward pass."""
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
def flat(world):  # noqa: F811
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


def test_replicas_and_unsharded_norms_are_bucketed(world):  # noqa: F811
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    model = layers([8, 8, 8], norm=True)
    shard(model, mesh, [Replicate(), Shard(0)], torch.bfloat16)
    forward, backward = compiled(model, torch.randn(4, 8, dtype=torch.bfloat16))
    kinds = [kind for kind, _ in compare(forward, "default")]
    assert kinds == ["all_gather"]
    kinds = [kind for kind, _ in compare(backward, "default")]
    assert kinds == ["reduce_scatter"]
    # The group of the replicas has no gathers, so its collectives are not
    # FSDP's.
    left = fsdp.plan(fsdp.graph.from_fx(backward))["left"]
    assert left and {member["why"] for member in left} == {"not fsdp"}


def test_gradients_of_norms_are_all_reduced_in_a_bucket(flat):
    model = layers([8, 8, 8], norm=True)
    shard(model, flat, [Shard(0)])
    module = joined(*compiled(model, torch.randn(4, 8)))
    found = compare(module, "default")
    assert [kind for kind, _ in found] == ["all_gather", "reduce_scatter", "all_reduce"]


def joined(forward, backward):
    """Returns one graph with both. The gathers in it show that the all-reduces
    are FSDP's."""
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


def test_symbolic_sizes_count_with_their_traced_values(flat):
    model = layers([8, 8])
    shard(model, flat, [Shard(0)])
    forward, backward = compiled(model, torch.randn(6, 8), dynamic=True)
    values = [node.meta.get("val") for node in forward.graph.nodes]
    assert any(isinstance(value, torch.SymInt) for value in values)
    for graph in forward, backward:
        compare(graph, "default")


class Block(nn.Module):
    """A layer of a transformer whose heads share one matrix."""

    def __init__(self, size):
        super().__init__()
        self.before, self.after = nn.LayerNorm(size), nn.LayerNorm(size)
        self.qkv = nn.Linear(size, 3 * size, bias=False)
        self.out = nn.Linear(size, size, bias=False)
        self.up = nn.Linear(size, 4 * size)
        self.down = nn.Linear(4 * size, size)

    def forward(self, x):
        q, k, v = self.qkv(self.before(x)).unflatten(-1, (3, 2, -1)).unbind(-3)
        attended = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.flatten(-2))
        return x + self.down(nn.functional.gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    def __init__(self, words=24, size=16, n=3):
        super().__init__()
        self.embedding = nn.Embedding(words, size)
        self.blocks = nn.Sequential(*(Block(size) for _ in range(n)))
        self.head = nn.Linear(size, words, bias=False)

    def forward(self, x):
        return self.head(self.blocks(self.embedding(x)))


@pytest.fixture(scope="module")
def transformer(flat):
    """Returns the graphs of the forward and the backward pass. Matrices are
    sharded, norms replicated."""
    model = Transformer()
    shard(model, flat, [Shard(0)], torch.bfloat16)
    return compiled(model, torch.randint(24, (2, 8)))


@pytest.mark.parametrize("mode", MODES)
def test_a_transformer_has_the_buckets_of_torch(transformer, mode):
    forward, backward = transformer
    module = joined(forward, backward)
    for cap_mb in (2000.0, 0.01, 0.004, 0.001):
        compare(forward, mode, cap_mb)
        compare(backward, mode, cap_mb)
        compare(module, mode, cap_mb)
    kinds = {kind for kind, _ in compare(module, mode)}
    assert kinds == {"all_gather", "reduce_scatter", "all_reduce"}


def run_inductor(module, _, cap_mb):
    """Does everything that Inductor does to a graph after autograd, with its
    own options."""
    # this import warns
    from torch._inductor.fx_passes.post_grad import post_grad_passes

    values = [node.meta.get("val") for node in module.graph.nodes]
    options = {}
    for kind in ("all_gathers", "reduce_scatters"):
        options[f"bucket_{kind}_fx"] = "only_fsdp"
        options[f"bucket_{kind}_fx_bucket_size_determinator"] = cap_mb
    with config.patch(options), V.set_fake_mode(detect_fake_mode(values)):
        post_grad_passes(module, is_inference=False)


def test_inductor_makes_the_planned_buckets(transformer):
    for module in transformer:
        theirs, _ = bucketed_by_torch(module, "default", 0.01, run_inductor)
        plan = fsdp.plan(fsdp.graph.from_fx(module), cap_mb=0.01, faithful=True)
        assert len(theirs) > 1
        assert theirs == buckets_of(plan)


def traced(model, batch):
    """Returns the number of elements of each input of an all-gather that
    fully_shard() runs."""

    def step(x):
        model(x).sum().backward()
        return x

    graph = make_fx(step)(batch).graph
    copies = graph.find_nodes(
        op="call_function", target=torch.ops.fsdp.all_gather_copy_in.default
    )
    return [node.args[2] for node in copies]


def test_a_group_of_fully_shard_sends_the_same_bytes_as_a_bucket(flat):
    """This also holds for uneven shards, which both pad."""
    sizes, batch = [6, 10, 7], torch.randn(8, 6)
    model = layers(sizes)
    fully_shard(model, mesh=flat)
    (sent,) = traced(model, batch)
    model = layers(sizes)
    shard(model, flat, [Shard(0)])
    forward, _ = compiled(model, batch)
    (bucket,) = fsdp.plan(fsdp.graph.from_fx(forward))["buckets"]
    assert [member["length"] // 4 for member in bucket["members"]] == sent
    assert bucket["part"] // 4 == sum(sent)
