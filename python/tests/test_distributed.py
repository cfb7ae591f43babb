"""Tests the backend "fsdpd" against gloo. Each process makes the same calls
with the same tensors in a group of each backend.

Data that is moved must have the same bits. A reduction is compared bit by bit
with the sum in the order of the ranks, and with gloo's sum, which rounds after
each rank. A layout has a digit for each rank: the number of its node, that is,
of its broker. The sums of nodes are rounded, and added in the order of the
nodes. All layouts with the same number of ranks are tested by the same
processes, which ask gloo only once.
"""

import functools
import itertools
import os

import pytest
import torch
import torch.distributed as dist

import crowd
import fsdp.distributed

pytestmark = pytest.mark.filterwarnings("ignore")

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int8]
DTYPES += [torch.uint8, torch.bool, torch.int32, torch.int64]
SIZES = (0, 1, 7, 1 << 20)  # bytes, but at least one element
OPS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


SOCKETS = []  # those of the brokers, which the ranks inherit


@functools.cache
def gloo():
    return dist.new_group(backend="gloo")


@functools.cache
def fsdpd(layout):
    os.environ["FSDP_SOCKET"] = SOCKETS[int(layout[dist.get_rank()])]
    return dist.new_group(backend="fsdpd")


def world():
    return range(dist.get_world_size())


@functools.cache
def values(rank, shape, dtype, seed=0):
    """Returns the same values in each process. They must not be changed."""
    generator = torch.Generator().manual_seed(100 * seed + rank)
    if dtype.is_floating_point:
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype)
    top = 2 if dtype == torch.bool else 100
    return torch.randint(0, top, shape, generator=generator).to(dtype)


class Case:
    """A call with one dtype and shape. `own()` returns an input of this
    rank."""

    def __init__(self, dtype, shape, op="SUM", view=lambda x: x):
        self.dtype, self.shape, self.op, self.view = dtype, shape, op, view

    def own(self, seed=0):
        return self.view(values(dist.get_rank(), self.shape, self.dtype, seed).clone())

    def parts(self):
        return [self.own(seed) for seed in world()]

    def empty(self):
        return self.view(torch.zeros(self.shape, dtype=self.dtype))

    def empties(self):
        return [self.empty() for _ in world()]

    def reduce_op(self):
        return getattr(dist.ReduceOp, self.op)


# --- the calls: each returns what the rank then has ---------------------------


def broadcast(case, group):
    tensors = case.parts()
    for root, tensor in enumerate(tensors):
        dist.broadcast(tensor, root, group)
    return tensors


def all_gather(case, group):
    out = case.empties()
    dist.all_gather(out, case.own(), group)
    return out


def all_gather_into_tensor(case, group):
    out = torch.cat([x.contiguous().view(-1) for x in case.empties()])
    dist.all_gather_into_tensor(out, case.own().contiguous().view(-1), group)
    return [out]


def all_gather_coalesced(case, group):
    out = [[case.empty(), case.empty()] for _ in world()]
    dist.all_gather_coalesced(out, [case.own(), case.own(1)], group)
    return sum(out, [])


def gather(case, group):
    results = []
    for root in world():
        out = case.empties() if root == dist.get_rank() else None
        dist.gather(case.own(), out, root, group)
        results += out or []
    return results


def scatter(case, group):
    results = [case.empty() for _ in world()]
    for root, out in enumerate(results):
        parts = case.parts() if root == dist.get_rank() else None
        dist.scatter(out, parts, root, group)
    return results


def all_to_all_single(case, group):
    flat = torch.cat([x.contiguous().view(-1) for x in case.parts()])
    out = torch.zeros_like(flat)
    dist.all_to_all_single(out, flat, group=group)
    return [out]


def uneven_all_to_all(case, group):
    """Each rank r gets r + s rows from each rank s. A row has a quarter of the
    case's size, and is the row before it moved by one element, so that no two
    rows are the same."""
    rank, sizes = dist.get_rank(), [dist.get_rank() + s for s in world()]
    size = (case.shape[0] + 3) // 4
    source = torch.cat([values(rank, case.shape, case.dtype), values(rank, (64,), case.dtype)])
    rows = source.unfold(0, size, 1)[: sum(sizes)].contiguous()
    out = torch.zeros_like(rows)
    dist.all_to_all_single(out, rows, sizes, sizes, group=group)
    return [out]


def ring(case, group):
    n, rank, out = len(world()), dist.get_rank(), case.empty()
    works = [dist.isend(case.own(), (rank + 1) % n, group, tag=3)] if n > 1 else []
    works += [dist.irecv(out, (rank - 1) % n, group, tag=3)] if n > 1 else []
    for work in works:
        work.wait()
    return [out]


def from_anywhere(case, group):
    if case.shape == (0,):
        return []  # gloo cannot send this
    if dist.get_rank():
        dist.send(case.own(), 0, group)
        dist.barrier(group)
        return []
    out = {}
    for _ in world()[1:]:
        tensor = case.empty()
        out[dist.recv(tensor, group=group)] = tensor
    dist.barrier(group)  # otherwise a rank's next message could be received here
    assert sorted(out) == list(world()[1:])
    return [out[source] for source in sorted(out)]


def objects(case, group):
    said = [None for _ in world()]
    dist.all_gather_object(said, case.own(), group)
    one = [case.own() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(one, 0, group)
    return said + one


def future(case, group):
    tensor = case.own()
    work = dist.broadcast(tensor, 0, group, async_op=True)
    (out,) = work.get_future().then(lambda f: [x.clone() for x in f.value()]).wait()
    work.wait()
    assert work.is_completed()
    return [out]


def batch(case, group):
    n, rank, out = len(world()), dist.get_rank(), case.empty()
    if n > 1:
        pair = dist.P2POp(dist.isend, case.own(), (rank + 1) % n, group)
        pair = [pair, dist.P2POp(dist.irecv, out, (rank - 1) % n, group)]
        for work in dist.batch_isend_irecv(pair):
            work.wait()
    return [out]


MOVES = [broadcast, all_gather, all_gather_into_tensor, all_gather_coalesced, gather]
MOVES += [scatter, all_to_all_single, uneven_all_to_all, ring, from_anywhere, objects]
MOVES += [future, batch]


def all_reduce(case, group):
    tensor = case.own()
    dist.all_reduce(tensor, case.reduce_op(), group)
    return [tensor]


def reduce(case, group):
    results = []
    for root in world():
        tensor = case.own()
        dist.reduce(tensor, root, case.reduce_op(), group)
        results += [tensor] if root == dist.get_rank() else []
    return results


def all_reduce_coalesced(case, group):
    tensors = [case.own(), case.own(0)]
    dist.all_reduce_coalesced(tensors, case.reduce_op(), group)
    return tensors


def coalescing(case, group):
    tensors = [case.own(), case.own(0)]
    with dist._coalescing_manager(group):
        for tensor in tensors:
            dist.all_reduce(tensor, case.reduce_op(), group)
    return tensors


def reduce_scatter(case, group):
    """Gives the same parts to each rank, so that all ranks get the same sum."""
    out = case.empty()
    dist.reduce_scatter(out, [case.own() for _ in world()], case.reduce_op(), group)
    return [out]


def reduce_scatter_tensor(case, group):
    parts = torch.cat([case.own().contiguous().view(-1) for _ in world()])
    out = case.empty()
    dist.reduce_scatter_tensor(out, parts, case.reduce_op(), group)
    return [out]


REDUCTIONS = [all_reduce, reduce, all_reduce_coalesced, coalescing, reduce_scatter]
REDUCTIONS += [reduce_scatter_tensor]

FOLDS = {
    "SUM": torch.add,
    "AVG": torch.add,
    "PRODUCT": torch.mul,
    "MIN": torch.minimum,
    "MAX": torch.maximum,
    "BAND": torch.bitwise_and,
    "BOR": torch.bitwise_or,
    "BXOR": torch.bitwise_xor,
}


@functools.cache
def in_order(op, dtype, shape, layout):
    """Returns the reduction of all ranks' inputs, node by node and in the order
    of the ranks."""
    wide = torch.float32 if dtype in (torch.float16, torch.bfloat16) else dtype
    nodes = {}
    for rank, node in enumerate(layout):
        nodes.setdefault(node, []).append(values(rank, shape, dtype).to(wide))
    sums = [functools.reduce(FOLDS[op], inputs) for inputs in nodes.values()]
    if len(sums) > 1:
        rounded = [total.to(dtype).to(wide) for total in sums]
        sums = [functools.reduce(FOLDS[op], rounded).to(dtype)]
    return (sums[0] / len(layout) if op == "AVG" else sums[0]).to(dtype)


# --- comparing ----------------------------------------------------------------


def bits(tensor):
    """Returns the bytes, as elements of 8 bytes if possible, since torch.equal()
    compares these faster."""
    if tensor.dtype == torch.bool:
        # a true element may be 2 with gloo
        tensor = tensor.contiguous().view(torch.uint8) != 0
    raw = tensor.contiguous().view(-1).view(torch.uint8)
    is_wide = raw.numel() % 8 == 0 and raw.storage_offset() % 8 == 0
    return raw.view(torch.int64) if is_wide else raw


# The results of one test, which the layouts need one after another, are 22 at most.
@functools.lru_cache(maxsize=32)
def results_of_gloo(call, dtype, shape, op):
    return call(Case(dtype, shape, op), gloo())


def both(call, case, layout):
    """Returns the results of both backends."""
    theirs = results_of_gloo(call, case.dtype, case.shape, case.op)
    ours = call(case, fsdpd(layout))
    for mine, their in zip(ours, theirs, strict=True):
        assert mine.dtype == their.dtype and mine.shape == their.shape
    return list(zip(ours, theirs))


def check_move(call, dtype, layout):
    for size in SIZES:
        case = Case(dtype, (size and max(1, size // dtype.itemsize),))
        for mine, theirs in both(call, case, layout):
            assert torch.equal(bits(mine), bits(theirs)), size


def ops_of(dtype):
    """Returns the operations to test. gloo has no averages of integers, and no
    bitwise operations on floats."""
    return OPS[:5] if dtype.is_floating_point else OPS[:1] + OPS[2:]


def check_reduction(call, dtype, layout):
    for size in SIZES:
        for op in ops_of(dtype) if size < 100 else ["SUM"]:
            case = Case(dtype, (size and max(1, size // dtype.itemsize),), op)
            for mine, theirs in both(call, case, layout):
                wanted = in_order(op, dtype, case.shape, layout)
                assert torch.equal(bits(mine), bits(wanted)), (size, op)
                if dtype.is_floating_point:
                    slack = dist.get_world_size() * torch.finfo(dtype).eps
                    assert torch.allclose(mine, theirs, rtol=slack, atol=8 * slack), (size, op)
                else:
                    assert torch.equal(bits(mine), bits(theirs)), (size, op)


VIEWS = {
    "transposed": lambda x: x.view(3, 5).t(),
    "strided": lambda x: x.view(3, 5)[:, ::2],
    "offset": lambda x: x[3:12],
    "scalar": lambda x: x[0],
}


def check_views(call, layout):
    """Checks tensors that are views. The backend accepts all of them, except as
    messages between nodes, which gloo sends. gloo refuses some views on all
    ranks before the call begins."""
    if call is ring and len(set(layout)) > 1:
        return
    for view in VIEWS.values():
        case = Case(torch.float32, (15,), view=view)
        mine = call(case, fsdpd(layout))
        plain = Case(torch.float32, (15,), view=lambda x: view(x).contiguous())
        for a, b in zip(mine, call(plain, fsdpd(layout)), strict=True):
            assert torch.equal(a, b)


VIEWED = [broadcast, all_gather, gather, scatter, ring, all_reduce, reduce]
VIEWED += [reduce_scatter]

CASES = {
    f"{call.__name__}-{str(dtype).removeprefix('torch.')}": functools.partial(
        check, call, dtype
    )
    for check, calls in ((check_move, MOVES), (check_reduction, REDUCTIONS))
    for call in calls
    for dtype in DTYPES
} | {f"views-{call.__name__}": functools.partial(check_views, call) for call in VIEWED}


LAYOUTS = ("0", "00", "000", "0000")
LAYOUTS += ("0101", "0111", "0120")  # several nodes, also of different sizes


def check_backend(layout):
    is_several = isinstance(fsdpd(layout), fsdp.distributed.SeveralNodes)
    assert is_several == (len(set(layout)) > 1)


CASES["backend"] = check_backend


def check_uneven_parts(layout):
    """Gathers and reduces parts of a different size on each rank, one of them
    empty. The bytes after a part must not change."""
    rank, group = dist.get_rank(), fsdpd(layout)
    sizes = [2 * other for other in world()]
    wanted = [torch.full((size,), float(other)) for other, size in enumerate(sizes)]
    spaces = [torch.full((size + 64,), -1.0) for size in sizes]
    outputs = [space[:size] for space, size in zip(spaces, sizes)]
    dist.all_gather(outputs, wanted[rank], group)
    total = torch.full((sizes[rank] + 64,), -1.0)
    dist.reduce_scatter(total[: sizes[rank]], wanted, group=group)
    assert all(map(torch.equal, outputs, wanted))
    assert torch.equal(total[: sizes[rank]], len(layout) * wanted[rank])
    assert all((x[size:] == -1).all() for x, size in zip(spaces, sizes))
    assert (total[sizes[rank] :] == -1).all()


CASES["uneven_parts"] = check_uneven_parts

MEANS = [torch.int8, torch.int16, torch.int32, torch.int64, torch.uint8, torch.uint16]
MEANS += [torch.uint32, torch.uint64, torch.float16, torch.bfloat16, torch.float32]
MEANS += [torch.float64, torch.complex64, torch.complex128]


def check_means(layout):
    """Checks averages whose sums have more bits than their dtype, except for
    dtypes of 64 bits."""
    n, rank, group = len(layout), dist.get_rank(), fsdpd(layout)
    for dtype in MEANS:
        top, low = 1000, -1000
        if not (dtype.is_floating_point or dtype.is_complex):
            top, low = torch.iinfo(dtype).max, torch.iinfo(dtype).min
        if dtype.itemsize == 8 and top > 1000:
            top, low = top // n, -(-low // n)
        tensor = torch.tensor([top - (rank == 0), low + (rank == 0)], dtype=dtype)
        out = torch.zeros_like(tensor)
        dist.reduce_scatter(out, [tensor] * n, dist.ReduceOp.AVG, group)
        dist.all_reduce(tensor, dist.ReduceOp.AVG, group)
        exact = [(n * top - 1) / n, (n * low + 1) / n]
        if not (dtype.is_floating_point or dtype.is_complex):
            exact = [(n * top - 1) // n, -((-n * low - 1) // n) if low else 1 // n]
        wanted = torch.tensor(exact, dtype=dtype)
        for mine in (out, tensor):
            torch.testing.assert_close(mine, wanted, msg=f"{mine} {wanted}")


CASES["means"] = check_means


def cases(layout):
    """Returns the names of the cases for the layout. Between nodes data are
    only bytes, so fewer dtypes are tested."""
    is_one = len(set(layout)) == 1
    skipped = () if is_one else ("float64", "float16", "uint8", "int8", "int64")
    return [name for name in CASES if name.rpartition("-")[2] not in skipped]


def prepare(layouts, world):
    """Makes the values and the reductions of the large cases before the ranks
    are forked, which then have them in common."""
    for dtype in DTYPES:
        shape = (max(SIZES) // dtype.itemsize,)
        for rank, seed in itertools.product(range(world), repeat=2):
            values(rank, shape, dtype, seed)
        for layout in layouts:
            in_order("SUM", dtype, shape, layout)


def run(brokers, world):
    """Runs each case with one layout after another."""
    SOCKETS[:] = [broker.path for broker in brokers]
    layouts = [layout for layout in LAYOUTS if len(layout) == world]
    prepare(layouts, world)
    pairs = [(l, name) for name in CASES for l in layouts if name in cases(l)]
    return crowd.run("gloo", world, {(l, c): functools.partial(CASES[c], l) for l, c in pairs})


@pytest.fixture(scope="module")
def verdicts(brokers):
    return functools.cache(functools.partial(run, brokers))


@pytest.mark.parametrize("layout, case", [(l, c) for l in LAYOUTS for c in cases(l)])
def test_each_call_gives_the_same_result_as_gloo(verdicts, layout, case):
    crowd.check(verdicts(len(layout)), (layout, case))
