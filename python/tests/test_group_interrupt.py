"""Ctrl-C and abort() end each wait of a rank of torch.distributed, and the other
ranks are told long before the time-out.

Each call has a group of its own. Rank 0 makes it without those that it waits for,
and is interrupted; these come afterwards.
"""

import datetime
import multiprocessing
import os
import signal
import threading

import pytest
import torch
import torch.distributed as dist

import crowd
import fsdp.distributed
from conftest import PATIENCE, sleeps, until

pytestmark = pytest.mark.filterwarnings("ignore")


def some():
    return torch.ones(3)


def many():
    """A send of so many elements waits for its receiver."""
    return torch.ones(1 << 22)


def wait_async(group):
    dist.all_reduce(some(), group=group, async_op=True).wait()


def all_to_all(group):
    n = dist.get_world_size()
    dist.all_to_all_single(torch.zeros(n), torch.ones(n), group=group)


# Which all ranks make.
COLLECTIVES = {
    "all_reduce": lambda group: dist.all_reduce(some(), group=group),
    "async": wait_async,
    "barrier": lambda group: dist.barrier(group),
    "all_to_all": all_to_all,
}
# Which rank 0 makes, for a message to or from the last one; that waits for another.
MESSAGES = {
    "receive": lambda last, group: dist.recv(some(), last, group),
    "receive_any": lambda last, group: dist.recv(some(), None, group),
    "irecv": lambda last, group: dist.irecv(some(), last, group).wait(),
    "send": lambda last, group: dist.send(many(), last, group),
}


def make_group(_):
    dist.new_group()  # The others do not.


def call_of(name, group):
    rank, last = dist.get_rank(), dist.get_world_size() - 1
    name = name.removesuffix(" abort")
    if name in COLLECTIVES:
        return COLLECTIVES[name]
    if rank == 0:
        return lambda group: MESSAGES[name](last, group)
    return lambda group: dist.recv(some(), 0, group, tag=1)


def abort(group, orders):
    orders.recv()
    group.abort()


def serve(names, pipe, orders, *place):
    # A shell has its jobs in the background ignore the signal.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    crowd.begin("fsdpd", *place)
    groups = {name: dist.new_group() for name in names}
    groups["new_group"] = None
    pipe.send("ready")
    while name := pipe.recv():
        call = make_group if name == "new_group" else call_of(name, groups[name])
        if name.endswith(" abort") and dist.get_rank() == 0:
            threading.Thread(target=abort, args=(groups[name], orders)).start()
        pipe.send("calls")
        try:
            call(groups[name])
            pipe.send(None)
        except BaseException as error:
            pipe.send(error)
    os._exit(0)  # Groups that have failed are not destroyed in order.


def received(pipe):
    assert pipe.poll(3 * PATIENCE)
    return pipe.recv()


class Rank:
    def __init__(self, names, *place):
        fork = multiprocessing.get_context("fork")
        self.pipe, theirs = fork.Pipe()
        orders, self.orders = fork.Pipe(duplex=False)
        self.process = fork.Process(target=serve, args=(names, theirs, orders, *place))
        self.process.start()
        theirs.close()
        orders.close()

    def call(self, name):
        self.pipe.send(name)
        assert received(self.pipe) == "calls"

    def is_interrupted(self):
        """Ctrl-C, when it waits in its call."""
        pid = self.process.pid
        until(lambda: sleeps(pid) and sleeps(pid), "the call waits")
        os.kill(pid, signal.SIGINT)
        return isinstance(received(self.pipe), KeyboardInterrupt)

    def is_aborted(self):
        """The same by abort() in another thread."""
        pid = self.process.pid
        until(lambda: sleeps(pid) and sleeps(pid), "the call waits")
        self.orders.send("abort")
        return isinstance(received(self.pipe), RuntimeError)

    def end(self):
        self.process.kill()
        self.process.join()


LAYOUTS = {"one node": "00", "two nodes": "001"}
NAMES = [*COLLECTIVES, *MESSAGES]
NAMES += [f"{name} abort" for name in NAMES if name != "receive_any"]


@pytest.fixture(scope="module", params=LAYOUTS)
def crew(request, brokers, tmp_path_factory):
    layout = LAYOUTS[request.param]
    store = tmp_path_factory.mktemp("store") / "store"
    ranks = [
        Rank(NAMES, store, rank, len(layout), brokers[int(node)].path)
        for rank, node in enumerate(layout)
    ]
    for rank in ranks:
        assert received(rank.pipe) == "ready"
    yield ranks
    for rank in ranks:
        rank.end()


@pytest.mark.parametrize("name", NAMES)
def test_an_interrupted_wait_ends_and_other_ranks_get_an_error(crew, name):
    is_collective = name.removesuffix(" abort") in COLLECTIVES
    first, *others, last = crew
    first.call(name)
    # Those of the same node wait for the last rank, too.
    told = others if is_collective and "async" not in name else []
    for rank in told:
        rank.call(name)
    assert first.is_aborted() if name.endswith(" abort") else first.is_interrupted()
    # An asynchronous call may have gone on, as the messages of one node do, and
    # there rank 0 has come to the barrier.
    if "async" in name or (len(crew) == 2 and (not is_collective or "barrier" in name)):
        return
    last.call(name)
    for rank in [*told, last]:
        assert isinstance(received(rank.pipe), RuntimeError)


def test_ctrl_c_ends_the_wait_for_ranks_that_form_a_group(crew):
    crew[0].call("new_group")
    assert crew[0].is_interrupted()


def test_the_error_names_a_rank_that_does_not_come():
    short = datetime.timedelta(milliseconds=10)
    with pytest.raises(fsdp.distributed.BackendError, match="rank 1 has not come"):
        fsdp.distributed._said(dist.HashStore(), 1, short)
