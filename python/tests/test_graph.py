"""Tests fsdp.graph.from_fx() and fsdp.plan(): what they export, and what errors
they report.
"""

import os
import types

import pytest
import torch

import fsdp
import fsdp.graph


class Op:
    """An operator that has only a name, so that no process group is needed."""

    __module__ = "tests"

    def __init__(self, name):
        self.__name__ = name

    def __str__(self):
        return self.__name__

    def __call__(self, *args, **kwargs):
        raise AssertionError("nothing is run")


GATHER = Op("_c10d_functional.all_gather_into_tensor.default")
SCATTER = Op("_c10d_functional.reduce_scatter_tensor.default")
REDUCE = Op("_c10d_functional.all_reduce.default")
WAIT = Op("_c10d_functional.wait_tensor.default")
CONVERT = Op("prims.convert_element_type.default")


class Build:
    def __init__(self):
        self.graph = torch.fx.Graph()

    def placeholder(self, name, *shape, dtype=torch.float32):
        return self.typed(self.graph.placeholder(name), shape, dtype)

    def call(self, target, args, shape, dtype=torch.float32, **kwargs):
        return self.typed(self.graph.call_function(target, args, kwargs), shape, dtype)

    def typed(self, node, shape, dtype):
        node.meta["val"] = torch.empty(shape, dtype=dtype, device="meta")
        return node

    def gathered(self, node, ranks=2, group="g"):
        shape = node.meta["val"].shape
        whole = (shape[0] * ranks, *shape[1:])
        start = self.call(GATHER, (node, ranks, group), whole)
        return self.call(WAIT, (start,), whole)

    def export(self, *outputs, **options):
        self.graph.output(outputs)
        nodes = fsdp.graph.from_fx(self.graph, **options)["nodes"]
        return {node["name"]: node for node in nodes}


def test_nodes_keep_names_types_and_order():
    build = Build()
    p = build.placeholder("p", 4, 3)
    low = build.call(CONVERT, (p, torch.bfloat16), (4, 3), torch.bfloat16)
    total = build.call(torch.add, (low, p), (4, 3))
    nodes = build.export(total)
    assert nodes["p"] == {"name": "p", "kind": "placeholder", "dtype": "f32", "shape": [4, 3]}
    convert = nodes[low.name]
    assert (convert["kind"], convert["inputs"], convert["dtype"]) == ("convert", ["p"], "bf16")
    add = nodes["add"]
    assert (add["kind"], add["inputs"]) == ("op", [low.name, "p"])
    assert add["call"].endswith(".add")
    assert nodes["output"] == {"name": "output", "kind": "output", "inputs": ["add"]}


def test_collectives_have_groups_reductions_and_waits():
    build = Build()
    p = build.placeholder("p", 4)
    whole = build.gathered(p)
    start = build.call(SCATTER, (whole, "avg", 2), (4,), group_name="g")
    part = build.call(WAIT, (start,), (4,))
    summed = build.call(REDUCE, (part, "sum", "g"), (4,))
    last = build.call(WAIT, (summed,), (4,))
    nodes = build.export(last)
    gather, scatter, reduce = (n for n in nodes.values() if "group" in n)
    assert (gather["kind"], gather["shape"], gather["group_size"]) == ("all_gather", [8], 2)
    assert (scatter["kind"], scatter["reduce"], scatter["group"]) == ("reduce_scatter", "avg", "g")
    # The size of this group follows from the other collectives.
    assert (reduce["kind"], reduce["reduce"], reduce["group_size"]) == ("all_reduce", "sum", 2)
    assert [n["kind"] for n in nodes.values()].count("wait") == 3
    assert fsdp.plan({"nodes": list(nodes.values())})["left"] == []


def test_a_group_of_another_process_needs_its_size():
    build = Build()
    start = build.call(REDUCE, (build.placeholder("p", 4), "sum", "far"), (4,))
    last = build.call(WAIT, (start,), (4,))
    build.graph.output((last,))
    with pytest.raises(fsdp.Invalid, match="'far' is unknown in this process"):
        fsdp.graph.from_fx(build.graph)
    nodes = fsdp.graph.from_fx(build.graph, group_sizes={"far": 8})["nodes"]
    assert [n["group_size"] for n in nodes if "group" in n] == [8]


def test_nodes_unknown_to_the_planner_become_operations():
    build = Build()
    p = build.placeholder("p", 4)
    both = build.graph.call_function(torch.chunk, (p, 2))
    both.meta["val"] = (torch.empty(2), torch.empty(2))
    count = build.graph.placeholder("n")
    count.meta["val"] = 3
    xor = build.call(REDUCE, (p, "bxor", "g"), (4,))
    waited = build.call(WAIT, (xor,), (4,))
    early = build.call(WAIT, (p,), (4,))
    nodes = build.export(waited, early, both, count)
    assert nodes["n"] == {"name": "n", "kind": "placeholder"}
    assert "dtype" not in nodes["chunk"] and "shape" not in nodes["chunk"]
    for node in xor, waited, early:
        assert nodes[node.name]["kind"] == "op"
    assert fsdp.plan({"nodes": list(nodes.values())})["buckets"] == []


@pytest.mark.parametrize("wrong", [None, "graph", {"nodes": []}, torch.nn.ReLU()])
def test_an_object_other_than_a_graph_of_torch_is_refused(wrong):
    with pytest.raises(TypeError, match=f"not {type(wrong).__name__}$"):
        fsdp.graph.from_fx(wrong)


def test_a_collective_of_unknown_size_is_refused():
    build = Build()
    p = build.graph.placeholder("p")
    build.graph.call_function(GATHER, (p, 2, "g"))
    with pytest.raises(fsdp.Invalid, match='export graphs whose nodes have meta'):
        fsdp.graph.from_fx(build.graph)


@pytest.fixture
def document():
    build = Build()
    waits = [build.gathered(build.placeholder(f"p{i}", 4)) for i in range(4)]
    return {"nodes": list(build.export(*waits).values())}


def sizes(plan):
    return [len(bucket["members"]) for bucket in plan["buckets"]]


def test_a_plan_has_buckets_and_the_graph_with_them(document):
    plan = fsdp.plan(document)
    assert sizes(plan) == [4]
    assert [m["offset"] for m in plan["buckets"][0]["members"]] == [0, 16, 32, 48]
    again = fsdp.plan(plan["graph"], mode="custom_ops")
    assert again["gather_mode"] == "custom_ops"
    # This gather has four shards as its input, so it does not look like one of
    # FSDP any more.
    assert [member["node"] for member in again["left"]] == ["bucket_ag0"]


def test_caps_are_one_number_or_a_list_for_the_buckets(document):
    assert sizes(fsdp.plan(document, cap_mb=0)) == [1, 1, 1, 1]
    assert sizes(fsdp.plan(document, gather_cap_mb=[0, 2000])) == [1, 3]
    assert sizes(fsdp.plan(document, gather_cap_mb=[0, 2000], faithful=True)) == []
    assert sizes(fsdp.plan(document, reduce_cap_mb=0)) == [4]
    modes = fsdp.plan(document, gather_mode="custom_ops", reduce_mode="coalesced")
    assert (modes["gather_mode"], modes["reduce_mode"]) == ("custom_ops", "coalesced")


def test_refusals_state_the_reason(document):
    with pytest.raises(fsdp.Invalid, match="^cannot plan: --mode: there is no mode 'x'"):
        fsdp.plan(document, mode="x")
    with pytest.raises(fsdp.Invalid, match="a cap of -1 MiB is invalid"):
        fsdp.plan(document, cap_mb=-1)
    document["nodes"].append(document["nodes"][0])
    with pytest.raises(fsdp.Invalid, match="^cannot plan: two nodes are named 'p0'"):
        fsdp.plan(document)
    with pytest.raises(TypeError):
        fsdp.plan({"nodes": [types]})


@pytest.mark.parametrize("wrong", [None, 5, [], {}, {"nodes": 3}, {"nodes": [], "x": 1}])
def test_an_invalid_document_is_refused(wrong):
    with pytest.raises(fsdp.Invalid, match="^cannot plan: "):
        fsdp.plan(wrong)


@pytest.mark.parametrize("wrong", ["x", "25,100", [], float("nan"), float("inf"), -1])
def test_an_invalid_cap_is_refused(document, wrong):
    with pytest.raises(ValueError):
        fsdp.plan(document, cap_mb=wrong)
    with pytest.raises(ValueError):
        fsdp.plan(document, gather_cap_mb=[1, wrong] if wrong else wrong)


def test_without_fsdpctl_the_error_says_what_to_install(document, monkeypatch):
    monkeypatch.delenv("FSDPCTL")
    monkeypatch.setenv("PATH", os.devnull)
    with pytest.raises(fsdp.Error, match="fsdpctl is not in PATH; install it"):
        fsdp.plan(document)
