"""Tests the module's communicators, on which fsdp.distributed is built, without
torch.
"""

import concurrent.futures
import itertools
import signal

import numpy
import pytest

import fsdp
from conftest import PATIENCE, run, sleeps, start, until

F32 = list(fsdp.DTYPES).index("f32") + 1
SUM = 0
WORLD = 3
_names = (f"test/{i}" for i in itertools.count())


class Ranks:
    """Ranks as threads, each with a connection of its own."""

    def __init__(self, broker, world, timeout=PATIENCE):
        self.clients = [fsdp.connect(broker.path) for _ in range(world)]
        self.threads = concurrent.futures.ThreadPoolExecutor(world)
        name = next(_names)
        self.comms = self.run(
            lambda rank: self.clients[rank]._join(name, world, rank, timeout)
        )

    def run(self, work):
        """Returns what each rank returns, after all have ended."""
        calls = [self.threads.submit(work, rank) for rank in range(len(self.clients))]
        concurrent.futures.wait(calls, 3 * PATIENCE)
        return [call.result(0) for call in calls]

    def close(self):
        self.threads.shutdown()
        for comm in self.comms:
            comm.leave()
        for client in self.clients:
            client.close()


@pytest.fixture
def ranks(broker):
    ranks = Ranks(broker, WORLD)
    yield ranks
    ranks.close()


def own(rank, n=5):
    return numpy.arange(n, dtype="f4") + 10 * rank


def part(array):
    return array.ctypes.data, array.size


def parts(array):
    """Returns one part for each rank."""
    return [part(row) for row in array]


ALL = numpy.stack([own(rank) for rank in range(WORLD)])


def broadcast(comm, rank):
    data = own(rank)
    comm.broadcast(F32, *part(data), 1)
    return data, ALL[1]


def all_reduce(comm, rank):
    data = own(rank)
    comm.all_reduce(F32, SUM, data.ctypes.data, *part(data))
    return data, ALL.sum(0)


def reduce(comm, rank):
    data = own(rank)
    comm.reduce(F32, SUM, data.ctypes.data, *part(data), 2)
    return data, ALL.sum(0) if rank == 2 else own(rank)


def all_gather(comm, rank):
    data, out = own(rank), numpy.empty_like(ALL)
    comm.all_gather(F32, *part(data), parts(out))
    return out, ALL


def gather(comm, rank):
    data, out = own(rank), numpy.zeros_like(ALL)
    comm.gather(F32, *part(data), parts(out) if rank == 0 else None, 0)
    return out, ALL if rank == 0 else numpy.zeros_like(ALL)


def scatter(comm, rank):
    out = numpy.empty(5, "f4")
    comm.scatter(F32, parts(ALL) if rank == 1 else None, *part(out), 1)
    return out, own(rank)


def reduce_scatter(comm, rank):
    data, out = ALL + rank, numpy.empty(5, "f4")
    comm.reduce_scatter(F32, SUM, parts(data), *part(out))
    return out, 3 * own(rank) + 0 + 1 + 2


def all_to_all(comm, rank):
    data, out = ALL + 100 * rank, numpy.empty_like(ALL)
    comm.all_to_all(F32, parts(data), parts(out))
    return out, own(rank) + 100 * numpy.arange(WORLD, dtype="f4")[:, None]


def messages(comm, rank):
    """Sends to the next rank, and receives from any rank. Only the previous
    rank sends to this one."""
    data, out = own(rank), numpy.empty(5, "f4")
    before = (rank - 1) % WORLD
    sent = comm.send(F32, *part(data), (rank + 1) % WORLD, 7)
    received = comm.receive(F32, *part(out), None, 7)
    assert received.wait(PATIENCE) and sent.wait(PATIENCE)
    assert received.rank == before and received.wait(0)
    return out, own(before)


CALLS = [broadcast, all_reduce, reduce, all_gather, gather, scatter]
CALLS += [reduce_scatter, all_to_all, messages]


@pytest.mark.parametrize("call", CALLS)
def test_each_rank_gets_its_own_result(ranks, call):
    for mine, wanted in ranks.run(lambda rank: call(ranks.comms[rank], rank)):
        numpy.testing.assert_array_equal(mine, wanted)


def test_the_error_of_a_barrier_names_the_missing_rank(ranks):
    with pytest.raises(fsdp.Timeout, match="^rank 0 .*, like 1 other rank, has not"):
        ranks.comms[1].barrier(0)
    with pytest.raises(fsdp.Timeout, match="^rank 2 "):
        ranks.comms[0].barrier(0.01)
    ranks.run(lambda rank: ranks.comms[rank].barrier(PATIENCE))


def test_a_message_that_has_not_arrived_can_be_waited_for_again(ranks):
    out = numpy.empty(5, "f4")
    received = ranks.comms[0].receive(F32, *part(out), 1, 0)
    assert not received.wait(0.01)
    data = own(1)
    sent = ranks.comms[1].send(F32, *part(data), 0, 0)
    assert received.wait(PATIENCE) and sent.wait(PATIENCE)
    numpy.testing.assert_array_equal(out, own(1))


@pytest.mark.parametrize(
    "bad, text",
    [
        (lambda comm: comm.all_gather(F32, 0, 0, []), "each of the 3 ranks"),
        (lambda comm: comm.all_gather(F32, 0, 0, [(0, 0)] * 2), "each of the 3"),
        (lambda comm: comm.broadcast(99, 0, 0, 0), "dtype"),
        (lambda comm: comm.broadcast(F32, 0, 0, 3), "root"),
        (lambda comm: comm.send(F32, 0, 0, 3, 0), "rank"),
    ],
)
def test_an_invalid_argument_is_refused_without_effect(ranks, bad, text):
    with pytest.raises(fsdp.Invalid, match=text):
        bad(ranks.comms[0])
    ranks.run(lambda rank: ranks.comms[rank].barrier(PATIENCE))


def test_calls_of_a_second_thread_are_refused(ranks):
    comm = ranks.comms[0]

    def wait():
        while is_refused(lambda: comm.barrier(PATIENCE)):
            pass

    def is_refused(call=lambda: comm.broadcast(99, 0, 0, 0)):
        try:
            call()
        except fsdp.Error as error:
            return "another thread" in str(error)

    waiting = ranks.threads.submit(wait)
    until(is_refused, "the other thread is in its call")
    with pytest.raises(fsdp.Error, match=r"another thread .* abort\(\) ends it"):
        comm.leave()
    comm.abort()
    waiting.result(PATIENCE)


def test_an_abort_ends_a_call_of_another_thread(ranks):
    data = own(0)
    waiting = ranks.threads.submit(
        ranks.comms[0].all_reduce, F32, SUM, data.ctypes.data, *part(data)
    )
    ranks.comms[0].abort()
    with pytest.raises(fsdp.Aborted, match="aborted by this process"):
        waiting.result(PATIENCE)
    with pytest.raises(fsdp.Aborted, match="aborted by this process"):
        ranks.comms[0].barrier(0)


def test_a_rank_that_has_left_cannot_make_calls(ranks):
    comm = ranks.comms[0]
    received = comm.receive(F32, 0, 0, 1, 0)
    comm.leave()
    comm.leave()
    for call in (lambda: comm.barrier(0), lambda: received.wait(0)):
        with pytest.raises(fsdp.Invalid, match="was left"):
            call()
    with pytest.raises(fsdp.Aborted, match="rank 0"):
        ranks.comms[1].barrier(PATIENCE)


@pytest.mark.parametrize("waits", (True, False))
def test_the_error_names_a_rank_that_leaves_before_its_first_call(ranks, waits):
    """It has not opened the memory in which ranks say that they leave. Another rank
    may have opened it before, or opens it afterwards."""
    if waits:
        ranks.comms[1].receive(F32, 0, 0, 2, 0)
    ranks.comms[0].leave()
    with pytest.raises(fsdp.Aborted, match="rank 0 .* left"):
        ranks.comms[1].barrier(1)


RANK = f"""
    import fsdp
    comm = fsdp.connect()._join("test/died", 2, 1, {PATIENCE})
    try:
        print("joined", flush=True)
        comm.barrier(None)
    except KeyboardInterrupt:
        print("interrupted", flush=True)
"""


def test_the_error_names_a_rank_that_is_killed(broker, c):
    process = start(broker, RANK)
    comm = c._join("test/died", 2, 0, PATIENCE)
    assert process.stdout.readline() == "joined\n"
    process.kill()
    data = own(0)
    with pytest.raises(fsdp.Aborted, match="rank 1") as caught:
        comm.all_reduce(F32, SUM, data.ctypes.data, *part(data))
    assert str(process.pid) in str(caught.value)
    process.communicate()
    comm.leave()


def test_ctrl_c_ends_a_call(broker, c):
    process = start(broker, RANK)
    comm = c._join("test/died", 2, 0, PATIENCE)
    assert process.stdout.readline() == "joined\n"
    until(lambda: sleeps(process.pid), "the call waits")
    process.send_signal(signal.SIGINT)
    assert process.communicate(timeout=PATIENCE) == ("interrupted\n", "")
    comm.leave()


def test_an_exception_of_a_signal_handler_is_not_lost(broker, c):
    """The error must come even if the handler aborts the communicator first."""
    script = f"""
        import fsdp, signal, sys
        comm = fsdp.connect()._join("test/died", 2, 1, {PATIENCE})
        def stop(*_):
            comm.abort()
            sys.exit(7)
        signal.signal(signal.SIGTERM, stop)
        print("joined", flush=True)
        comm.barrier(None)
    """
    process = start(broker, script)
    comm = c._join("test/died", 2, 0, PATIENCE)
    assert process.stdout.readline() == "joined\n"
    until(lambda: sleeps(process.pid), "the call waits")
    process.terminate()
    assert process.communicate(timeout=PATIENCE) == ("", "")
    assert process.returncode == 7
    comm.leave()


def test_a_forked_child_is_not_a_rank(broker):
    """The child may drop what it has inherited without harm to the rank."""
    script = """
        import fsdp, os
        c = fsdp.connect()
        comms = [c._join(f"test/{i}", 1, 0, 20) for i in range(2)]
        if os.fork() == 0:
            comms[0].leave()
            del comms
            os._exit(0)
        os.wait()
        for comm in comms:
            comm.barrier(20)
            comm.leave()
    """
    assert run(broker, script) == (0, "", "")
