"""Tests groups of the backend "fsdpd", apart from their results."""

import datetime
import functools
import json
import os
import threading
import time

import pytest
import torch
import torch.distributed as dist

import crowd
import fsdp.distributed
from conftest import PATIENCE, run, start
from fsdp.__main__ import main

pytestmark = pytest.mark.filterwarnings("ignore")


def calls_are_made_in_the_order_of_submission():
    tensor, works = torch.ones(3), []
    for _ in range(20):
        works.append(dist.all_reduce(tensor, async_op=True))
        works.append(dist.broadcast(tensor, 0, async_op=True))
    for work in reversed(works):
        assert work.wait()
    assert torch.equal(tensor, torch.full((3,), 2.0**20))


def many_threads_can_use_many_groups():
    made = [dist.new_group() for _ in range(4)]
    errors = []

    def use(group):
        try:
            for i in range(50):
                tensor = torch.full((100,), float(i))
                dist.all_reduce(tensor, group=group)
                assert torch.equal(tensor, torch.full((100,), 2.0 * i))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=use, args=(group,)) for group in made]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    for group in made:
        dist.destroy_process_group(group)


def a_callback_may_make_a_call():
    tensor = torch.ones(1)

    def again(future):
        dist.all_reduce(future.value()[0])
        return future.value()

    work = dist.all_reduce(tensor, async_op=True)
    work.get_future().then(again).wait()
    assert tensor.item() == 4
    late = work.get_future()  # the future of a call that is done
    assert late.done() and late.wait() == [tensor]


def large_messages_can_cross_and_continue_during_collectives():
    rank, other = dist.get_rank(), 1 - dist.get_rank()
    mine, theirs = torch.full((1 << 20,), float(rank)), torch.empty(1 << 20)
    sent = dist.isend(mine, other)
    total = torch.ones(1)
    dist.all_reduce(total)  # meanwhile no thread waits for the message
    dist.recv(theirs, other)
    sent.wait()
    assert torch.equal(theirs, torch.full((1 << 20,), float(other)))


def messages_are_received_by_their_tag():
    rank = dist.get_rank()
    tensors = [torch.full((3,), float(i)) for i in range(3)]
    if rank == 0:
        for tag in (2, 0, 1):
            dist.send(tensors[tag], 1, tag=tag)
    else:
        for tag in range(3):
            got = torch.empty(3)
            dist.recv(got, 0, tag=tag)
            assert torch.equal(got, tensors[tag])


def a_wait_has_a_time_out():
    if dist.get_rank() == 0:
        work = dist.irecv(torch.empty(1), 1)
        with pytest.raises(fsdp.Error, match="rank 1 has not sent a message of tag 0 within 0.01 s"):
            work.wait(datetime.timedelta(milliseconds=10))
        assert not work.is_completed() and not work.is_success()
    dist.barrier()
    if dist.get_rank() == 0:
        work.wait()
    else:
        dist.send(torch.ones(1), 0)


def says_who_is_late(call):
    group, error = dist.new_group(timeout=datetime.timedelta(seconds=5)), None
    if dist.get_rank() == 0:
        with pytest.raises(fsdp.Error) as error:
            call(group)
    dist.barrier()  # rank 1 is late, but has not left
    assert error is None or "rank 1" in str(error.value) and "within 5" in str(error.value)


def the_error_names_a_rank_that_is_late_for_a_collective():
    says_who_is_late(lambda group: dist.all_reduce(torch.ones(3), group=group))


def the_error_names_a_rank_that_is_late_with_a_message():
    says_who_is_late(lambda group: dist.recv(torch.ones(3), 1, group=group))


def invalid_calls_are_refused_without_effect():
    one, two = torch.ones(3), torch.ones(3, dtype=torch.int32)
    group = dist.group.WORLD
    for call in (
        lambda: dist.all_reduce(one, dist.ReduceOp.BAND),
        lambda: dist.all_reduce(one.to(torch.float8_e4m3fn)),
        lambda: dist.all_reduce(torch.empty(1, device="meta")),
        lambda: dist.all_reduce(one.to_sparse()),
        lambda: dist.broadcast(torch.quantize_per_tensor(one, 0.1, 0, torch.qint8), 0),
        lambda: dist.all_to_all_single(one, one),
        lambda: dist.all_to_all_single(one, one, [1, 1], [1, 2]),
        lambda: dist.all_gather_into_tensor(one, one),
        lambda: group.allgather([[one, two]], [one]),
        lambda: group.allgather([[one]], [one]),
        lambda: group.allreduce([one, one]),
        lambda: dist.send(one, 1 - dist.get_rank(), tag=-1),
        lambda: dist.recv(one, 1 - dist.get_rank(), tag=2**64),
    ):
        with pytest.raises((fsdp.Invalid, ValueError)):
            call()
    dist.barrier()


class Store:
    """A store in which one rank is slow to delete its key."""

    def __init__(self, store):
        self.set, self.get, self.check = store.set, store.get, store.check
        self._delete = store.delete_key

    def delete_key(self, key):
        if key == "place/0":
            time.sleep(0.1)
        self._delete(key)


def a_store_can_be_used_for_successive_groups():
    store = dist.PrefixStore("again", dist.distributed_c10d._get_default_store())
    rank, patience = dist.get_rank(), datetime.timedelta(seconds=PATIENCE)
    for _ in range(3):
        group = fsdp.distributed._make(Store(store), rank, 2, patience)
        assert not store.check(["place/0"]) and not store.check(["place/1"])
        group.barrier().wait()  # at this time no rank has begun to make the next group
        group.shutdown()


def ranks_outside_of_a_group_take_no_part_in_it():
    """Each group has its own ranks. Ranks that are not in a group take no part
    in it."""
    singles = [dist.new_group([rank]) for rank in range(2)]
    tensor = torch.ones(1) + dist.get_rank()
    dist.all_reduce(tensor, group=singles[dist.get_rank()])
    assert tensor.item() == 1 + dist.get_rank()


def many_groups_can_exist():
    """fully_shard() makes some groups for each layer if `reshard_after_forward`
    is a number."""
    groups = [dist.new_group() for _ in range(130)]
    tensor = torch.ones(1)
    for group in groups[::10]:
        dist.all_reduce(tensor, group=group)
    assert tensor.item() == 2**13
    for group in groups:
        dist.destroy_process_group(group)


def elements_of_any_dtype_can_be_sent():
    for dtype in (torch.complex64, torch.float8_e5m2, torch.uint16, torch.complex32):
        tensor = torch.full((5,), 1.0 + dist.get_rank()).to(dtype)
        out = [torch.empty_like(tensor) for _ in range(2)]
        dist.all_gather(out, tensor)
        assert [x.float()[0] if not dtype.is_complex else x[0].real for x in out] == [1, 2]
    tensor = torch.complex(torch.ones(2), torch.ones(2))
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.complex(torch.full((2,), 2.0), torch.full((2,), 2.0)))


class Scaled(torch.Tensor):
    """A tensor that wraps elements and their scale, as quantized tensors do."""

    @staticmethod
    def __new__(cls, elements, scale):
        return cls._make_wrapper_subclass(cls, elements.shape, dtype=torch.float32)

    def __init__(self, elements, scale):
        self.elements, self.scale = elements, scale

    def __tensor_flatten__(self):
        return ["elements", "scale"], None

    @classmethod
    def __torch_dispatch__(cls, function, types, args=(), kwargs=None):
        raise AssertionError("It is only passed on.")


def scaled(n):
    return Scaled(torch.full((4,), n, dtype=torch.int8), torch.full((1,), n / 2))


def holds(tensor, n):
    return bool((tensor.elements == n).all() and (tensor.scale == n / 2).all())


def wrapped_tensors_are_sent():
    group, rank = dist.group.WORLD, dist.get_rank()
    tensor = scaled(rank + 1)
    out, two = scaled(0), [scaled(0), scaled(0)]
    dist.all_gather(two, tensor)
    assert holds(two[0], 1) and holds(two[1], 2)
    dist.scatter(out, [scaled(3), scaled(4)] if rank == 0 else None)
    assert holds(out, 3 + rank)
    dist.gather(tensor, two if rank == 0 else None)
    assert rank == 1 or holds(two[1], 2)
    group.alltoall(two, [scaled(5 + rank), scaled(7 + rank)]).wait()
    assert holds(two[0], 5 + 2 * rank) and holds(two[1], 6 + 2 * rank)
    dist.broadcast(tensor, 1)
    assert holds(tensor, 2)
    for call in (
        lambda: dist.all_reduce(tensor),
        lambda: dist.send(tensor, 1 - rank),
        lambda: group.allgather([[tensor, torch.ones(4)]], [tensor]),
    ):
        with pytest.raises(fsdp.Invalid):
            call()


def wrapped_tensors_are_reduced_if_they_are_like_the_wrapper():
    from torch.testing._internal.two_tensor import TwoTensor

    rank = dist.get_rank()
    tensor, out = TwoTensor(torch.ones(4), torch.ones(4) + rank), torch.ones(2)
    dist.all_reduce(tensor)
    assert tensor.a.tolist() == [2] * 4 and tensor.b.tolist() == [3] * 4
    out = TwoTensor(out, out.clone())
    dist.reduce_scatter_tensor(out, tensor)
    assert out.a.tolist() == [4] * 2 and out.b.tolist() == [6] * 2
    dist.all_gather_into_tensor(tensor, out)
    assert tensor.a.tolist() == [4] * 4 and tensor.b.tolist() == [6] * 4


def a_collective_waits_for_the_result_of_a_functional_collective():
    from torch.distributed import _functional_collectives as functional

    tensor = functional.all_reduce(torch.ones(3), "sum", dist.group.WORLD)
    assert isinstance(tensor, functional.AsyncCollectiveTensor)
    dist.all_reduce(tensor)
    assert tensor.tolist() == [4] * 3


def a_dtensor_is_refused():
    from torch.distributed.tensor import DTensor, Replicate, init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    tensor = DTensor.from_local(torch.ones(3), mesh, [Replicate()], run_check=False)
    with pytest.raises(fsdp.Invalid, match="to_local"):
        dist.all_reduce(tensor)


def a_compiled_model_calls_the_group():
    """DDP broadcasts the buffers before a forward pass, from C++."""
    layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4)).eval()
    model = torch.nn.parallel.DistributedDataParallel(layers)
    layers[1].running_mean.fill_(dist.get_rank())
    torch.compile(model, backend="eager")(torch.ones(3, 4)).sum().backward()
    assert not layers[1].running_mean.any()


def a_parameter_can_be_received():
    """This also holds for a parameter that is not contiguous. Its graph must
    not change."""
    weight = torch.nn.Parameter(torch.arange(6.0).view(2, 3).t() + dist.get_rank())
    dist.broadcast(weight, 1)
    assert torch.equal(weight, torch.arange(6.0).view(2, 3).t() + 1)
    assert weight.is_leaf and weight.grad_fn is None


def functional_collectives_give_correct_results():
    from torch.distributed import _functional_collectives as functional

    group, rank = dist.group.WORLD, dist.get_rank()
    x = torch.arange(4.0) + rank
    assert torch.equal(functional.all_reduce(x, "sum", group), 2 * torch.arange(4.0) + 1)
    gathered = functional.all_gather_tensor(x, 0, group)
    assert torch.equal(gathered, torch.cat([torch.arange(4.0), torch.arange(4.0) + 1]))
    scattered = functional.reduce_scatter_tensor(x, "sum", 0, group)
    assert torch.equal(scattered, (2 * torch.arange(4.0) + 1).chunk(2)[rank])
    passed = functional.all_to_all_single(x, None, None, group)
    assert torch.equal(passed, torch.cat([(torch.arange(4.0) + i).chunk(2)[rank] for i in (0, 1)]))
    assert torch.equal(functional.broadcast(x, 0, group), torch.arange(4.0))


CASES = {
    case.__name__: case
    for case in (
        calls_are_made_in_the_order_of_submission,
        many_threads_can_use_many_groups,
        a_callback_may_make_a_call,
        large_messages_can_cross_and_continue_during_collectives,
        messages_are_received_by_their_tag,
        a_wait_has_a_time_out,
        the_error_names_a_rank_that_is_late_for_a_collective,
        the_error_names_a_rank_that_is_late_with_a_message,
        invalid_calls_are_refused_without_effect,
        a_store_can_be_used_for_successive_groups,
        ranks_outside_of_a_group_take_no_part_in_it,
        many_groups_can_exist,
        elements_of_any_dtype_can_be_sent,
        wrapped_tensors_are_sent,
        wrapped_tensors_are_reduced_if_they_are_like_the_wrapper,
        a_collective_waits_for_the_result_of_a_functional_collective,
        a_dtensor_is_refused,
        a_compiled_model_calls_the_group,
        a_parameter_can_be_received,
        functional_collectives_give_correct_results,
    )
}


@pytest.fixture(scope="module")
def verdicts(broker):
    return functools.cache(lambda: crowd.run("fsdpd", 2, CASES))


@pytest.mark.parametrize("case", CASES)
def test_the_group_passes_each_case(verdicts, case):
    crowd.check(verdicts(), case)


def test_the_bench_has_a_row_for_each_call_and_a_step(broker, capsys):
    main(["--socket", broker.path, "bench", "--distributed", "--quick", "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [row["name"] for row in rows] == [
        "barrier_2",
        "all_reduce_1KiB_2",
        "all_reduce_1MiB_2",
        "all_gather_1MiB_2",
        "reduce_scatter_1MiB_2",
        "broadcast_1MiB_2",
        "all_to_all_1MiB_2",
        "ping_pong_1KiB_2",
        "fsdp2_step_2",
        "fsdp2_shared_step_2",
        "fsdp2_gather_2",
        "fsdp2_shared_gather_2",
    ]
    assert all(row["median"] > 0 and row["floor"] > 0 for row in rows)
    for row in rows:
        assert ("memory" in row and "floor_memory" in row) == ("step" in row["name"])


def test_the_error_for_an_unsupported_tensor_names_a_remedy():
    """The error says what to pass instead. Quantized tensors, for example, have
    a scale in addition to their elements."""
    one = torch.ones(3)
    for tensor, way in (
        (one.to_sparse(), "give to_dense"),
        (torch.quantize_per_tensor(one, 0.1, 0, torch.qint8), r"give int_repr\(\)"),
        (torch.nested.nested_tensor([one, one]), "give the tensors of its unbind"),
        (one.to("meta"), "give one with elements"),
    ):
        with pytest.raises(fsdp.Invalid, match=f"cannot send or reduce .*; {way}"):
            fsdp.distributed._check(tensor)


# --- ranks that end -----------------------------------------------------------

@pytest.fixture
def crew(broker, tmp_path):
    """Starts ranks that wait until they are told to make a call."""
    with crowd.crew(tmp_path) as start_crew:
        yield lambda call, world=3: start_crew(call, [broker.path] * world)


def reduce():
    dist.all_reduce(torch.ones(3))


CALLS = {
    "sync": reduce,
    "async": lambda: dist.all_reduce(torch.ones(3), async_op=True).wait(),
    "future": lambda: dist.all_reduce(torch.ones(3), async_op=True).get_future().wait(),
    "receive": lambda: dist.recv(torch.ones(3), 1),
    "send": lambda: dist.send(torch.ones(1 << 20), 1),
    "barrier": dist.barrier,
}


@pytest.mark.parametrize("call", CALLS)
def test_the_error_names_a_rank_that_is_killed(crew, call):
    first, killed, last = crew(CALLS[call])
    for rank in (first, last):
        rank.go()
    killed.kill()
    for rank in (first, last):
        error = rank.said()
        assert isinstance(error, RuntimeError), error
        assert "rank 1" in str(error) and str(killed.process.pid) in str(error)
        if call != "future":  # the error of a future has passed through C++
            assert isinstance(error, fsdp.distributed.BackendError)


def test_ranks_that_differ_get_an_error_with_both_calls(crew):
    ranks = crew(lambda: dist.all_reduce(torch.ones(3 + dist.get_rank())), world=2)
    for rank in ranks:
        rank.go()
    for rank in ranks:
        error = str(rank.said())
        assert "all-reduce (sum of f32)" in error and "3" in error and "4" in error


def test_a_group_can_be_formed_again_after_a_death(crew):
    for _ in range(2):
        first, killed = crew(reduce, world=2)
        killed.kill()
        first.go()
        assert "rank 1" in str(first.said())
    for rank in (ranks := crew(reduce, world=2)):
        rank.go()
    assert [rank.said() for rank in ranks] == [None, None]


# --- making one ---------------------------------------------------------------


def test_compiling_works_with_a_torch_without_a_private_function(broker, tmp_path):
    """Another version of torch may have other functions within its compiler."""
    status, out, err = run(
        broker,
        f"""
        import torch, torch._dynamo, torch.distributed as dist, types
        real = torch._C._dynamo.eval_frame
        fewer = dict(vars(real))
        del fewer["_FrameExecStrategy"]
        torch._C._dynamo.eval_frame = types.SimpleNamespace(**fewer)
        import fsdp.distributed
        torch._C._dynamo.eval_frame = real

        dist.init_process_group("fsdpd", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        layers = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4))
        model = torch.nn.parallel.DistributedDataParallel(layers)
        torch.compile(model, backend="eager")(torch.ones(3, 4)).sum().backward()
        print("trained")
        """,
        "-W",
        "ignore",
    )
    assert (status, out) == (0, "trained\n"), err


def test_a_process_may_end_without_destroying_its_group(broker, tmp_path):
    status, out, err = run(
        broker,
        f"""
        import torch, torch.distributed as dist, fsdp.distributed
        dist.init_process_group("fsdpd", init_method="file://{tmp_path}/store", rank=0, world_size=1)
        dist.all_reduce(torch.ones(3), async_op=True).wait()
        work = dist.all_reduce(torch.ones(3), async_op=True)
        """,
        "-W",
        "ignore",
    )
    assert (status, out, err) == (0, "", "")


def test_a_process_may_end_before_its_calls_and_messages(broker, tmp_path):
    """Its threads end before the interpreter does."""
    script = f"""
        import atexit, sys, threading
        atexit.register(lambda: print(threading.active_count(), [f.done() for f in futures]))
        import torch, torch.distributed as dist, fsdp.distributed
        rank, futures = int(sys.argv[1]), []
        dist.init_process_group("fsdpd", init_method="file://{tmp_path}/store", rank=rank, world_size=2)
        if rank == 0:
            futures.append(dist.all_reduce(torch.ones(3), async_op=True).get_future())
            futures.append(dist.irecv(torch.ones(3), 1).get_future())
        else:
            sys.stdin.read()
    """
    ranks = [start(broker, script, "-W", "ignore", arguments=[rank]) for rank in "01"]
    for rank, said in zip(ranks, ("1 [True, True]\n", "1 []\n")):
        assert rank.communicate(timeout=3 * PATIENCE) == (said, "")
        assert rank.returncode == 0


def test_without_a_broker_every_rank_gets_an_error(monkeypatch):
    """Rank 1 has no broker."""
    store = dist.HashStore()
    store.set("place/1", "error cannot connect: no fsdpd listens\nx")
    with pytest.raises(fsdp.distributed.BackendError, match="rank 1: cannot connect"):
        fsdp.distributed._make(store, 0, 2, datetime.timedelta(seconds=PATIENCE))
    monkeypatch.setenv("FSDP_SOCKET", "/nonexistent")
    fsdp._default._forget()
    with pytest.raises(fsdp.Error, match="nonexistent"):
        fsdp.distributed._make(store, 0, 2, datetime.timedelta(seconds=PATIENCE))
    assert store.get("place/0").startswith(b"error ")


def uses_gloo():
    group = dist.group.WORLD
    assert isinstance(group._get_backend(torch.device("cpu")), dist.ProcessGroupGloo)
    tensor = torch.ones(2)
    dist.all_reduce(tensor)
    assert torch.equal(tensor, torch.full((2,), 2.0))


def test_a_group_with_one_rank_on_each_node_uses_gloo(broker, monkeypatch):
    monkeypatch.setattr(fsdp.distributed, "_place", lambda: f"node of {os.getpid()}")
    crowd.check(crowd.run("fsdpd", 2, {"gloo": uses_gloo}), "gloo")
