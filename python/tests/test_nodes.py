"""Tests groups of the backend "fsdpd" over several nodes, apart from their
results. Each node is a broker of its own.
"""

import datetime
import functools
import json

import pytest
import torch
import torch.distributed as dist

import crowd
import fsdp.distributed
from conftest import PATIENCE, start
from fsdp.__main__ import main

pytestmark = pytest.mark.filterwarnings("ignore")

LAYOUT = "0110"  # the node of each rank


def calls_are_made_in_the_order_of_submission():
    tensor, works = torch.ones(3), []
    for _ in range(5):
        works.append(dist.all_reduce(tensor, async_op=True))
        works.append(dist.broadcast(tensor, 1, async_op=True))
    for work in reversed(works):
        assert work.wait() and work.is_completed() and work.is_success()
    assert torch.equal(tensor, torch.full((3,), 4.0**5))


def a_callback_may_make_a_call():
    tensor = torch.ones(1)

    def again(future):
        dist.all_reduce(future.value()[0])
        return future.value()

    dist.all_reduce(tensor, async_op=True).get_future().then(again).wait()
    assert tensor.item() == 16


def a_large_tensor_is_reduced_in_chunks():
    plain = torch.arange((5 << 18) + 3).remainder(1000).float()  # 5 MiB
    tensor = plain + dist.get_rank()
    dist.all_reduce(tensor)
    assert torch.equal(tensor, 4 * plain + 6)


def means_of_integers_are_rounded_towards_zero():
    for dtype in (torch.int8, torch.int64):
        tensor = torch.tensor([-7, 7], dtype=dtype) - dist.get_rank() // 3
        dist.all_reduce(tensor, dist.ReduceOp.AVG)
        assert tensor.tolist() == [-7, 6]


def invalid_calls_are_refused_without_effect():
    one = torch.ones(3)
    for call in (
        lambda: dist.all_reduce(one, dist.ReduceOp.BAND),
        lambda: dist.all_reduce(one > 0, dist.ReduceOp.AVG),
        lambda: dist.reduce_scatter(one > 0, [one > 0] * 4, dist.ReduceOp.AVG),
        lambda: dist.all_gather_into_tensor(one, one),
        lambda: dist.all_gather([torch.ones(5)] * 4, one),
        lambda: dist.reduce_scatter(one, [torch.ones(5)] * 4),
    ):
        with pytest.raises(fsdp.Invalid):
            call()
    dist.barrier()


def node_of(rank):
    return [other for other in range(4) if LAYOUT[other] == LAYOUT[rank]]


def check_error(error, rank, culprit):
    """Checks that the error names the rank at fault. It gives its number in the
    group if that rank is on the same node. Otherwise it names the node, or a
    rank of its own node that has reported the failure and left."""
    assert isinstance(error, fsdp.distributed.BackendError), error
    if culprit in node_of(rank):
        assert f"rank {culprit} (pid" in str(error)
    else:
        (other,) = set(node_of(rank)) - {rank}
        node = f"nodes of the ranks [{node_of(culprit)[0]}]"
        assert node in str(error) or f"rank {other} (pid" in str(error)


def errors_name_ranks_that_are_late():
    """The time-out also limits the making of the group, so it is not short."""
    timeout, tensor, rank = datetime.timedelta(seconds=15), torch.ones(3), dist.get_rank()
    groups = {late: dist.new_group(timeout=timeout) for late in (0, 2)}
    groups.pop(rank, None)
    works = {
        late: dist.all_reduce(tensor.clone(), group=group, async_op=True)
        for late, group in groups.items()
    }
    for late, work in works.items():
        with pytest.raises(fsdp.distributed.BackendError) as error:
            work.wait()
        check_error(error.value, rank, late)
        with pytest.raises(fsdp.distributed.BackendError, match="has failed before"):
            dist.all_reduce(tensor, group=groups[late])
    dist.barrier()  # the late ranks have not left


def a_group_may_be_shut_down_as_soon_as_it_was_created():
    """By one rank, while another one is still about to connect its group."""
    for _ in range(30):
        dist.new_group().shutdown()


def a_group_that_was_shut_down_sends_nothing():
    group = dist.new_group()
    group.shutdown()
    for call in (group.send, group.recv):
        with pytest.raises(fsdp.distributed.BackendError, match="was destroyed"):
            call([torch.ones(1)], node_of(dist.get_rank())[0], 0)
    with pytest.raises(fsdp.distributed.BackendError, match="was destroyed"):
        group.recv_anysource([torch.ones(1)], 0)


def a_group_that_was_aborted_sends_nothing():
    """gloo's own error would speak of a time-out."""
    group = dist.new_group()
    group.abort()
    for call in (dist.send, dist.recv):
        with pytest.raises(fsdp.distributed.BackendError, match="failed or was aborted"):
            call(torch.ones(1), (dist.get_rank() + 1) % 4, group)


def a_receive_from_any_rank_returns_the_sender():
    rank, tensor = dist.get_rank(), torch.zeros(1)
    if rank == 0:
        assert {dist.recv(tensor, None) for _ in range(3)} == {1, 2, 3}
    else:
        dist.send(tensor, 0)


def a_group_on_one_node_shares_memory():
    """A group with ranks of both nodes belongs to gloo."""
    rank, pairs = dist.get_rank(), ([0, 3], [1, 2], [0, 1], [2, 3])
    for ranks, group in [(ranks, dist.new_group(ranks)) for ranks in pairs]:
        if rank in ranks:
            tensor = torch.ones(2)
            dist.all_reduce(tensor, group=group)
            assert tensor.tolist() == [2, 2], ranks
            is_ours = isinstance(group, fsdp.distributed.ProcessGroup)
            assert is_ours == (ranks == node_of(rank))


CASES = {
    case.__name__: case
    for case in (
        calls_are_made_in_the_order_of_submission,
        a_callback_may_make_a_call,
        a_large_tensor_is_reduced_in_chunks,
        means_of_integers_are_rounded_towards_zero,
        invalid_calls_are_refused_without_effect,
        a_group_on_one_node_shares_memory,
        errors_name_ranks_that_are_late,
        a_group_may_be_shut_down_as_soon_as_it_was_created,
        a_group_that_was_shut_down_sends_nothing,
        a_group_that_was_aborted_sends_nothing,
        a_receive_from_any_rank_returns_the_sender,
    )
}


@pytest.fixture(scope="module")
def verdicts(brokers):
    return functools.cache(lambda: crowd.run_on(brokers, LAYOUT, "fsdpd", CASES))


@pytest.mark.parametrize("case", CASES)
def test_the_group_passes_each_case(verdicts, case):
    crowd.check(verdicts(), case)


def test_the_bench_has_rows_of_two_nodes(brokers, capsys):
    first, second = brokers[0].path, brokers[1].path
    options = ["--distributed", "--second", second, "--quick", "--json"]
    main(["--socket", first, "bench", *options])
    said = capsys.readouterr().out.splitlines()
    rows = {row["name"]: row for row in map(json.loads, said)}
    assert {"barrier_2x2", "all_reduce_1MiB_2x2", "broadcast_1MiB_2x2"} <= rows.keys()
    assert all(row["median"] > 0 and row["floor"] > 0 for row in rows.values())


# --- errors ---------------------------------------------------------------------


class Local:
    """A stand-in for the communicator of one node, which raises the given
    error."""

    has_left = False

    def __init__(self, error):
        self.error = error

    def barrier(self, _):
        raise self.error

    def leave(self):
        self.has_left = True


@pytest.mark.parametrize(
    "error, said",
    (
        (fsdp.Aborted("rank 1 (pid 5) died"), r"^rank 3 \(pid 5\) died$"),
        (fsdp.Aborted("rank 2 said: rank 0 died"), "^rank 2 said: rank 0 died$"),
        (MemoryError("none"), r"^a call failed in this process: MemoryError\('none'\)$"),
    ),
)
def test_each_error_has_its_own_message(error, said):
    """Whatever the error says, the node's own communicator is left, so that the
    other ranks of the node are told."""
    local = Local(error)
    comm = fsdp._nodes.Comm([[0, 3], [1, 2]], 0, local, None, None)
    with pytest.raises(fsdp.distributed.BackendError, match=said):
        comm.barrier(None)
    assert local.has_left


# --- ranks that end -----------------------------------------------------------


@pytest.fixture
def crew(brokers, tmp_path):
    """Starts ranks, each of which makes a call when it is told to."""
    sockets = [brokers[int(node)].path for node in LAYOUT]
    with crowd.crew(tmp_path) as start_crew:
        yield lambda call: start_crew(call, sockets)


@pytest.mark.parametrize("killed", (0, 2))
@pytest.mark.parametrize("n", (1, 1 << 16))
def test_a_death_is_reported_on_all_nodes(crew, killed, n):
    """The death is reported long before the time-out."""
    ranks = dict(enumerate(crew(lambda: dist.all_reduce(torch.ones(n)))))
    dead = ranks.pop(killed)
    for rank in ranks.values():
        rank.go()
    dead.kill()
    for number, rank in ranks.items():
        error = rank.said()
        check_error(error, number, killed)


def test_a_process_may_end_before_its_calls(brokers, tmp_path):
    script = f"""
        import os, sys
        import torch, torch.distributed as dist, fsdp.distributed
        rank = int(sys.argv[1])
        os.environ["FSDP_SOCKET"] = sys.argv[2]
        dist.init_process_group("fsdpd", init_method="file://{tmp_path}/store", rank=rank, world_size=3)
        if rank == 0:
            work = dist.all_reduce(torch.ones(3), async_op=True)
            print("ends", flush=True)
        else:
            sys.stdin.read()
    """
    places = [[str(rank), brokers[node].path] for rank, node in enumerate((0, 1, 1))]
    ranks = [start(brokers[0], script, "-W", "ignore", arguments=place) for place in places]
    assert ranks[0].stdout.readline() == "ends\n"
    for rank, said in zip(ranks, ("", "", "")):
        assert rank.communicate(timeout=3 * PATIENCE) == (said, "")
        assert rank.returncode == 0
