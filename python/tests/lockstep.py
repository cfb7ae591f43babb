"""Computes a graph on all ranks at once in this process, with what its
collectives send. The values of each rank are those of a real run, bit for bit.
"""

import functools

import torch
from torch.fx.node import map_arg

from fsdp._dtypes import LONG_NAMES

OPERATORS = {
    "_c10d_functional.all_gather_into_tensor.default": "all_gather",
    "_c10d_functional.all_gather_into_tensor_out.default": "all_gather",
    "_c10d_functional.reduce_scatter_tensor.default": "reduce_scatter",
    "_c10d_functional.reduce_scatter_tensor_coalesced.default": "reduce_scatter_coalesced",
    "_c10d_functional.all_reduce.default": "all_reduce",
    "_c10d_functional.wait_tensor.default": "wait",
}


def bits(tensor):
    return bytes(tensor.contiguous().flatten().view(torch.uint8).tolist())


class Ranks:
    """The values of all ranks. `wire` has (kind, bytes of each rank) for every
    collective, in order."""

    def __init__(self, n, groups):
        self.n = n
        self.teams = {group.name: group.teams for group in groups}
        self.wire = []

    def team(self, name, rank):
        return next(team for team in self.teams[name] if rank in team)

    def inputs(self, module):
        """Returns small whole numbers for each placeholder, different ones for
        each rank."""
        torch.manual_seed(0)
        shards = [n.meta["val"] for n in module.graph.nodes if n.op == "placeholder"]
        return [
            [torch.randint(-8, 9, tuple(s.shape)).to(s.dtype) for s in shards]
            for _ in range(self.n)
        ]

    def total(self, values, team, op):
        total = functools.reduce(torch.add, [values[rank] for rank in team])
        return total / len(team) if op == "avg" else total

    def all_gather(self, values, group):
        return [torch.cat([values[r] for r in self.team(group, i)]) for i in range(self.n)]

    def reduce_scatter(self, values, group, op):
        parts = []
        for rank in range(self.n):
            team = self.team(group, rank)
            total = self.total(values, team, op)
            parts.append(total.chunk(len(team))[team.index(rank)])
        return parts

    def all_reduce(self, values, group, op):
        return [self.total(values, self.team(group, i), op) for i in range(self.n)]

    def collective(self, kind, values, group, op=None):
        if kind == "wait":
            return values
        if kind == "reduce_scatter_coalesced":
            self.wire.append((kind, [[bits(v) for v in value] for value in values]))
            parts = [self.reduce_scatter(v, group, op) for v in zip(*values)]
            return [list(rank) for rank in zip(*parts)]
        self.wire.append((kind, [bits(value) for value in values]))
        options = () if op is None else (op,)
        return getattr(self, kind)(values, group, *options)


def run_modules(modules, ranks, inputs):
    """Returns the outputs of each rank. Each rank has a module of its own; they
    differ only in the rank."""
    envs = [{} for _ in modules]
    feeds = [iter(values) for values in inputs]
    for nodes in zip(*(module.graph.nodes for module in modules), strict=True):
        args = [map_arg(node.args, env.get) for node, env in zip(nodes, envs)]
        kind = OPERATORS.get(str(nodes[0].target))
        if nodes[0].op == "placeholder":
            values = [next(feed) for feed in feeds]
        elif nodes[0].op == "output":
            return [rank[0] for rank in args]
        elif kind:
            group = args[0][-1]
            op = args[0][1] if "reduce" in kind else None
            values = ranks.collective(kind, [rank[0] for rank in args], group, op)
        else:
            options = [map_arg(node.kwargs, env.get) for node, env in zip(nodes, envs)]
            values = [n.target(*a, **k) for n, a, k in zip(nodes, args, options)]
        for node, env, value in zip(nodes, envs, values):
            env[node] = value
    raise AssertionError("the graph has no output")


def torch_dtype(word):
    return getattr(torch, LONG_NAMES[word])


def fill(node, operands):
    """Returns the flat buffer that copy_in, concat or pack fills
    (docs/graph.md)."""
    dtype, rows = torch_dtype(node["dtype"]), node["rows"]
    buffer = torch.zeros(rows, node["row_size"], dtype=dtype)
    for entry, operand in zip(node["entries"], operands, strict=True):
        piece = operand.to(torch_dtype(entry["dtype"])).reshape(rows, -1)
        end = entry["offset"] + entry["length"]
        buffer[:, entry["offset"] : end] = piece.contiguous().view(dtype)
    return buffer.flatten()


def unpack(node, buffer):
    rows = buffer.reshape(node["rows"], node["row_size"])
    piece = rows[:, node["offset"] : node["offset"] + node["length"]]
    return piece.contiguous().view(torch_dtype(node["dtype"])).reshape(node["shape"])


def run_operation(node, original, env, rank):
    """Computes one node without communication on one rank."""
    operands = [env[name][rank] for name in node["inputs"]]
    kind = node["kind"]
    if kind == "copy_in":
        return fill(node, operands[1:])
    if kind in ("concat", "pack"):
        return fill(node, operands)
    if kind == "unpack":
        return unpack(node, operands[0])
    return original.target(*map_arg(original.args, lambda n: env[n.name][rank]))


def run_document(document, module, ranks, inputs):
    """Does the same as run_modules() with a planned graph; `module` is the one
    that was planned."""
    originals = {node.name: node for node in module.graph.nodes}
    feeds, env = zip(*inputs), {}
    for node in document["nodes"]:
        kind, sources = node["kind"], [env[n] for n in node.get("inputs", [])]
        if kind == "placeholder":
            values = next(feeds)
        elif kind == "allocate":
            values = [None] * ranks.n  # a copy_in node fills it later
        elif kind == "output":
            return list(zip(*sources))
        elif kind == "wait":
            values = sources[0]
            if isinstance(values[0], list):
                values = [rank[node.get("index", 0)] for rank in values]
        elif kind == "reduce_scatter_coalesced":
            values = [list(rank) for rank in zip(*sources)]
            values = ranks.collective(kind, values, node["group"], node["reduce"])
        elif "group" in node:
            values = ranks.collective(kind, sources[0], node["group"], node.get("reduce"))
        else:
            original = originals.get(node["name"])
            values = [run_operation(node, original, env, r) for r in range(ranks.n)]
        env[node["name"]] = values
    raise AssertionError("the graph has no output")
