"""Compares fsdp.plan() with what PyTorch's own bucketing passes do with a
graph.

Importing this module needs torch 2.13. No rank communicates: the process group
is torch's fake one, in which this process is rank 0.
"""

import contextlib
import copy

import pytest
import torch
import torch.distributed as dist

import fsdp
import fsdp.graph

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
passes = pytest.importorskip("torch._inductor.fx_passes.fsdp")

from torch._inductor import config  # noqa: E402
from torch._inductor.pattern_matcher import stable_topological_sort  # noqa: E402

WORLD = 4
MODES = ("default", "custom_ops", "custom_ops_multidtype", "coalesced")
CAP_MB = 2000.0


@pytest.fixture(scope="module", autouse=True)
def world():
    dist.init_process_group("fake", store=fake_pg.FakeStore(), rank=0, world_size=WORLD)
    yield
    dist.destroy_process_group()


@contextlib.contextmanager
def recorded(buckets):
    """Collects the buckets that Inductor's passes merge, as (kind, names)."""
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


def run_passes(module, mode, cap_mb):
    """Runs the three passes in the order of pre_bucket_fsdp_collectives(). That
    function skips graphs without gathers, such as many backward graphs; this
    one does not."""
    groups, _ = passes.identify_fsdp_groups(module)
    passes.bucket_fsdp_all_gather(module, cap_mb, mode)
    passes.bucket_fsdp_reduce_scatter(module, cap_mb, mode)
    passes.bucket_fsdp_all_reduce(module, cap_mb, groups)
    stable_topological_sort(module.graph)  # The callers of the passes do this, too.


def run_sorted_passes(module, mode, cap_mb):
    """Does the same, but sorts the nodes before each pass, so that their order
    is one in which they can run."""
    groups, _ = passes.identify_fsdp_groups(module)
    passes.bucket_fsdp_all_gather(module, cap_mb, mode)
    stable_topological_sort(module.graph)
    passes.bucket_fsdp_reduce_scatter(module, cap_mb, mode)
    stable_topological_sort(module.graph)
    passes.bucket_fsdp_all_reduce(module, cap_mb, groups)
    stable_topological_sort(module.graph)


def bucketed_by_torch(module, mode, cap_mb, run=run_passes):
    """Returns the buckets, and the module after the passes."""
    module = copy.deepcopy(module)
    buckets = []
    # This option decides how the pass groups all-gathers, and the argument how
    # it merges them.
    option = {"aten_distributed_optimizations.bucket_mode": mode}
    with recorded(buckets), config.patch(option):
        run(module, mode, lambda _: cap_mb)
    return buckets, module


def buckets_of(plan):
    return [(b["kind"], [m["node"] for m in b["members"]]) for b in plan["buckets"]]


def numel(node):
    count = 1
    for size in node["shape"]:
        count *= size
    return count


def collectives(document):
    """Returns the kind, group, dtype and elements of each collective, in the
    order in which they are issued."""
    return [
        (node["kind"], node["group"], node["dtype"], numel(node))
        for node in document["nodes"]
        if "group" in node and node["kind"] != "reduce_scatter_coalesced"
    ]


def compare(module, mode, cap_mb=CAP_MB):
    """Checks that a faithful plan has the same buckets as torch. Returns
    these."""
    expected, after = bucketed_by_torch(module, mode, cap_mb)
    document = fsdp.graph.from_fx(module)
    plan = fsdp.plan(document, mode=mode, cap_mb=cap_mb, faithful=True)
    assert buckets_of(plan) == expected
    # The collectives are also issued in the same order, with the same sizes.
    assert collectives(plan["graph"]) == collectives(fsdp.graph.from_fx(after))
    return expected
