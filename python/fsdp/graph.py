"""Graphs that torch compiles, for fsdp.plan() and `fsdpctl plan`.

>>> import fsdp, fsdp.graph
>>> document = fsdp.graph.from_fx(module)         # a torch.fx.GraphModule
>>> [bucket["members"] for bucket in fsdp.plan(document)["buckets"]]
"""

import torch

from ._dtypes import name_of
from ._errors import Invalid

# Operators are given by name, so that any version of torch that has them is
# supported. Those with an `out` have the same operands first; their buffer is
# not exported.
_COLLECTIVES = {
    "_c10d_functional.all_gather_into_tensor.default": "all_gather",
    "_c10d_functional.all_gather_into_tensor_out.default": "all_gather",
    "_c10d_functional.reduce_scatter_tensor.default": "reduce_scatter",
    "_c10d_functional.all_reduce.default": "all_reduce",
}
_ARGUMENTS = {
    "all_gather": ("input", "group_size", "group_name"),
    "reduce_scatter": ("input", "reduce_op", "group_size", "group_name"),
    "all_reduce": ("input", "reduce_op", "group_name"),
}
_WAIT = "_c10d_functional.wait_tensor.default"
_CONVERTS = ("prims.convert_element_type.default", "aten._to_copy.default")
_REDUCES = ("sum", "avg", "min", "max", "product")
_MAX_DIMS = 8
_MAX_CALL = 255  # in bytes


def _size(size):
    """Return a number. For a symbolic size it is the one that torch has seen,
    or None."""
    if isinstance(size, int):
        return size
    return size.node.hint if size.node.has_hint() else None


def _type(node):
    """Return the dtype and shape, or {} if the value is not one tensor of a
    known type."""
    value = node.meta.get("val")
    if not isinstance(value, torch.Tensor) or value.dim() > _MAX_DIMS:
        return {}
    shape = [_size(size) for size in value.shape]
    if None in shape:
        return {}
    try:
        return {"dtype": name_of(value.dtype), "shape": shape}
    except Invalid:
        return {}  # for example, it is quantised


def _call(node):
    target = node.target
    if node.op == "call_function" and not isinstance(target, torch._ops.OpOverload):
        target = f"{target.__module__}.{target.__name__}"
    return str(target).encode()[:_MAX_CALL].decode(errors="ignore")


def _arguments(node, kind):
    names = _ARGUMENTS[kind]
    return {**dict(zip(names, node.args)), **node.kwargs}


def _group_name(arguments):
    """Return the name of the group, which can be given by a node with the group."""
    group = arguments["group_name"]
    return group if isinstance(group, str) else group.meta["val"].group_name


def _ask_for_size(name):
    """Return the number of ranks of a process group of this process, or None."""
    try:
        from torch.distributed.distributed_c10d import _resolve_process_group

        return _resolve_process_group(name).size()
    except (ImportError, RuntimeError, ValueError):
        return None


class _Export:
    def __init__(self, group_sizes):
        self.group_sizes = dict(group_sizes or {})
        self.started = set()  # the collectives
        self.nodes = []

    def group_size(self, node, name, arguments):
        size = arguments.get("group_size", self.group_sizes.get(name))
        if size is None:
            size = _ask_for_size(name)
        if size is None:
            raise Invalid(
                f"cannot export {node.name!r}: the number of ranks of its group "
                f"{name!r} is unknown in this process; pass it in group_sizes"
            )
        self.group_sizes[name] = size
        return size

    def add(self, node, kind, inputs=None, **fields):
        head = {"name": node.name, "kind": kind}
        if inputs is not None:
            head["inputs"] = [source.name for source in inputs]
        self.nodes.append({**head, **fields})

    def add_collective(self, node, kind):
        arguments = _arguments(node, kind)
        reduce = arguments.get("reduce_op")
        if reduce is not None and reduce not in _REDUCES:
            return False
        types = _type(node)
        if not types or not _type(arguments["input"]):
            raise Invalid(
                f"cannot export {node.name!r}: the dtypes and sizes of its inputs or "
                'outputs are unknown; export graphs whose nodes have meta["val"]'
            )
        name = _group_name(arguments)
        fields = {"group": name, "group_size": self.group_size(node, name, arguments)}
        if reduce is not None:
            fields["reduce"] = reduce
        self.add(node, kind, [arguments["input"]], **types, **fields)
        self.started.add(node)
        return True

    def add_call(self, node):
        name = str(node.target)
        types = _type(node)
        if name in _COLLECTIVES and self.add_collective(node, _COLLECTIVES[name]):
            return
        if name == _WAIT and node.args[0] in self.started:
            self.add(node, "wait", [node.args[0]], **types)
        elif name in _CONVERTS and types and _type(node.args[0]):
            self.add(node, "convert", [node.args[0]], **types)
        else:
            self.add(node, "op", node.all_input_nodes, call=_call(node), **types)

    def add_node(self, node):
        if node.op == "placeholder":
            self.add(node, "placeholder", **_type(node))
        elif node.op == "output":
            self.add(node, "output", node.all_input_nodes)
        else:
            self.add_call(node)


def from_fx(graph, *, group_sizes=None):
    """Convert a torch.fx.Graph or GraphModule to a dict, the JSON of
    docs/graph.md.

    Nodes keep their names. Functional collectives (all_gather_into_tensor,
    reduce_scatter_tensor, all_reduce), their waits, and changes of dtype keep
    their kind. All other nodes, including other collectives, become an "op".
    For a symbolic size the number is used that was seen when the graph was
    made.

    `group_sizes` maps names of process groups to numbers of ranks, for
    all-reduces over groups that this process does not have.
    """
    graph = getattr(graph, "graph", graph)
    if not isinstance(graph, torch.fx.Graph):
        raise TypeError(
            "from_fx() takes a torch.fx.Graph or GraphModule, "
            f"not {type(graph).__name__}"
        )
    export = _Export(group_sizes)
    for node in graph.nodes:
        export.add_node(node)
    return {"nodes": export.nodes}
