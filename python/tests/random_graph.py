"""Makes random graphs of torch.fx from a seed: placeholders, operations and
collectives.
"""

import random
from typing import NamedTuple

import torch
from torch._subclasses import FakeTensorMode

C10D = torch.ops._c10d_functional
DTYPES = (torch.float32, torch.bfloat16)
MAX_NUMEL = 4000  # elements of a tensor that is gathered


class Group(NamedTuple):
    """A process group, with the ranks of all groups that are the rows or
    columns of one mesh."""

    name: str
    teams: list

    @property
    def size(self):
        return len(self.teams[0])


class Builder:
    def __init__(self, seed, groups, dtypes=DTYPES):
        self.random = random.Random(seed)
        # With few groups and dtypes, neighbours often have the same ones.
        self.groups = self.few(groups)
        self.dtypes = self.few(dtypes)
        self.graph = torch.fx.Graph()
        self.mode = FakeTensorMode()
        self.nodes = []

    def few(self, items):
        return self.random.sample(items, self.random.choice([1, 1, 2, len(items)]))

    def keep(self, node, value):
        node.meta["val"] = value
        self.nodes.append(node)
        return node

    def placeholder(self, rows=None, columns=None, dtype=None):
        rows = rows or 4 * self.random.choice([1, 1, 2, 5])
        columns = columns or self.random.choice([1, 3])
        with self.mode:
            value = torch.empty(rows, columns, dtype=dtype or self.dtype())
        return self.keep(self.graph.placeholder(f"p{len(self.nodes)}"), value)

    def dtype(self):
        return self.random.choice(self.dtypes)

    def call(self, target, *args):
        values = [a.meta["val"] if isinstance(a, torch.fx.Node) else a for a in args]
        with self.mode:
            value = target(*values)
        return self.keep(self.graph.call_function(target, args), value)

    def pick(self):
        """Returns a random node, preferably one of the last."""
        return self.random.choice(self.random.choice([self.nodes, self.nodes[-6:]]))

    def convert(self, node, dtype=None):
        convert = torch.ops.prims.convert_element_type.default
        return self.call(convert, node, dtype or self.dtype())

    def operation(self, node=None):
        node = node or self.pick()
        kind = self.random.randrange(4)
        if kind == 0:
            return self.convert(node)
        if kind == 1:
            same = [n for n in self.nodes if n.meta["val"].shape == node.meta["val"].shape]
            return self.call(torch.ops.aten.add.Tensor, node, self.random.choice(same))
        return self.call(torch.ops.aten.neg.default, node)

    def wait(self, start):
        self.nodes.remove(start)
        return self.call(C10D.wait_tensor.default, start)

    def gather(self, node, group):
        gather = C10D.all_gather_into_tensor.default
        return self.wait(self.call(gather, node, group.size, group.name))

    def scatter(self, node, group, op="sum"):
        scatter = C10D.reduce_scatter_tensor.default
        return self.wait(self.call(scatter, node, op, group.size, group.name))

    def reduce(self, node, group, op="sum"):
        return self.wait(self.call(C10D.all_reduce.default, node, op, group.name))

    def collective(self, node=None):
        node, group = node or self.pick(), self.random.choice(self.groups)
        value = node.meta["val"]
        kind = self.random.choice(["gather", "gather", "scatter", "reduce"])
        op = self.random.choice(["sum", "sum", "avg"])
        if kind == "gather" and value.numel() < MAX_NUMEL:
            return self.gather(node, group)
        if kind == "scatter" and value.shape[0] % group.size == 0:
            return self.scatter(node, group, op)
        return self.reduce(node, group, op)

    def module(self):
        """Returns the graph. Its outputs are the nodes that no other node
        uses."""
        self.graph.output(tuple(n for n in self.graph.nodes if not n.users))
        return torch.fx.GraphModule(torch.nn.Module(), self.graph)


def anything(build):
    for _ in range(6):
        build.placeholder()
    for _ in range(30):
        build.random.choice([build.operation, build.collective])()


def chain(build):
    """Makes gathers, each of which needs an earlier one, of the same shard or
    of another."""
    shards = [build.placeholder(rows=4, columns=1) for _ in range(8)]
    node = shards[0]
    for shard in shards:
        group = build.random.choice(build.groups)
        if build.random.randrange(3) == 0:
            node = shard
        whole = build.gather(node, group)
        if build.random.randrange(2):
            whole = build.operation(whole)
        node = build.scatter(whole, group)
        if build.random.randrange(2):
            node = build.call(torch.ops.aten.add.Tensor, shard, shard)


def fan_out(build):
    """Makes gathers of a few shards in several dtypes and groups, with many
    users."""
    shards = [build.placeholder() for _ in range(3)]
    for _ in range(14):
        node = build.random.choice(shards)
        if build.random.randrange(2):
            node = build.convert(node)
        build.gather(node, build.random.choice(build.groups))
    for _ in range(8):
        build.operation()


def layers(build):
    """Makes a forward and a backward pass as FSDP does."""
    group, others = build.groups[0], build.groups[1:] or build.groups
    shards, norms = [], []
    for _ in range(build.random.randrange(2, 6)):
        shards += [build.placeholder() for _ in range(2)]
        norms.append(build.placeholder())
    wholes = [build.gather(build.convert(shard), group) for shard in shards]
    grads = [build.operation(whole) for whole in wholes]
    for grad in reversed(grads):
        part = build.scatter(grad, group, "avg")
        if build.random.randrange(4) == 0:
            part = build.reduce(part, build.random.choice(others), "avg")
        if build.random.randrange(2):
            build.convert(part)
    for norm in reversed(norms):
        build.reduce(build.operation(norm), group, "avg")


def dependents(build):
    """Makes neighbouring gathers, some of which need others."""
    group = build.groups[0]
    shards = [build.placeholder(rows=4, columns=1) for _ in range(4)]
    for _ in range(14):
        whole = build.gather(build.random.choice(shards), group)
        if build.random.randrange(3) == 0:
            negative = build.call(torch.ops.aten.neg.default, whole)
            shards.append(build.scatter(negative, group))


FAMILIES = (anything, chain, fan_out, layers, dependents)


def random_module(seed, groups, **options):
    """Makes a module. The kinds of graphs take turns."""
    build = Builder(seed, groups, **options)
    FAMILIES[seed % len(FAMILIES)](build)
    return build.module()
