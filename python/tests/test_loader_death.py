"""Tests deaths during an epoch of fsdp.torch.DataLoader. An epoch outlives the
broker, no death leaves memory in it, the death of a worker is an error, and what an
iterator has is closed once.
"""

import multiprocessing
import os
import queue
import signal
import threading
import types

import pytest
import torch
from torch.utils.data import Dataset

import fsdp
import fsdp.torch
from conftest import PATIENCE, Broker, start, until

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning")
# While many batches are kept, workers request new buffers from the broker.
KEPT = pytest.mark.parametrize("n_kept", [1, 30])


class Samples(Dataset):
    def __len__(self):
        return 200

    def __getitem__(self, i):
        return torch.full((4096,), i)


def read_epoch(n_kept, pause):
    """Reads an epoch, and checks each batch as long as it is kept. Calls
    pause() a few times with the pids of the workers. Returns how many batches
    there were."""
    batches = iter(fsdp.torch.DataLoader(Samples(), 2, num_workers=2))
    kept = []
    for n, batch in enumerate(batches):
        kept = (kept + [batch])[-n_kept:]
        if n % 30 == 15:
            pause([worker.pid for worker in batches._workers])
        first = 2 * (n + 1 - len(kept))
        for i, sample in enumerate(torch.cat(kept)):
            assert sample.shape == (4096,) and (sample == first + i).all(), (n, i)
    return n + 1


@pytest.fixture
def default_of_supervised(supervised, monkeypatch):
    monkeypatch.setenv("FSDP_SOCKET", supervised.path)
    monkeypatch.setattr(fsdp._default, "_clients", {})
    yield supervised
    fsdp.default().close()


@KEPT
def test_an_epoch_continues_when_the_broker_is_killed(default_of_supervised, n_kept):
    seen = []

    def kill(workers):
        fsdp.default().ping()  # the broker has restarted after its last death
        default_of_supervised.kill()
        seen.append(workers)

    before = fsdp.default().status()
    assert read_epoch(n_kept, kill) == 100
    assert seen == [seen[0]] * 3 and len(seen[0]) == 2
    assert fsdp.default().status()["epoch"] > before["epoch"]
    until(
        lambda: fsdp.default().status()["bytes_live"] == before["bytes_live"],
        "the memory is free",
    )


def train(n_kept, pipe):
    def pause(workers):
        pipe.send(workers)
        pipe.recv()

    read_epoch(n_kept, pause)


@pytest.mark.parametrize("victim", ["worker", "trainer"])
@KEPT
def test_a_death_leaves_no_memory_in_the_broker(c, victim, n_kept):
    def used():
        status = c.status()
        return status["sessions"], status["bytes_live"]

    before = used()
    context = multiprocessing.get_context("fork")
    here, there = context.Pipe()
    trainer = context.Process(target=train, args=(n_kept, there))
    trainer.start()
    workers = here.recv()
    assert all(now > then for now, then in zip(used(), before, strict=True))
    os.kill(trainer.pid if victim == "trainer" else workers[0], signal.SIGKILL)
    here.send("go on")
    trainer.join(6 * PATIENCE)
    assert trainer.exitcode == (1 if victim == "worker" else -signal.SIGKILL)
    until(lambda: used() == before, "the memory is free")


def test_the_death_of_a_worker_while_the_trainer_works_is_an_error(broker):
    batches = iter(fsdp.torch.DataLoader(Samples(), 2, num_workers=2))
    next(batches)
    with pytest.raises(RuntimeError, match="DataLoader worker"):
        os.kill(batches._workers[0].pid, signal.SIGKILL)
        for _ in batches:
            pass
    del batches
    assert len(list(fsdp.torch.DataLoader(Samples(), 2, num_workers=2))) == 100


def test_a_worker_ends_without_a_broker():
    script = """
        import fsdp.torch, sys
        client = fsdp.connect(reconnect=2)
        iterator = iter(fsdp.torch.DataLoader(range(8), num_workers=1, client=client))
        next(iterator)
        print("begun", flush=True)
        sys.stdin.readline()
        del iterator
        print("ended")
    """
    broker = Broker()
    process = start(broker, script)
    assert process.stdout.readline() == "begun\n"
    broker.stop()
    assert process.communicate("\n", 6 * PATIENCE) == ("ended\n", "")


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_trainer_and_worker_use_the_client_that_is_given(monkeypatch, tmp_path, method):
    broker = Broker()
    monkeypatch.setenv("FSDP_SOCKET", str(tmp_path / "none"))
    monkeypatch.setattr(fsdp._default, "_clients", {})
    with fsdp.connect(broker.path) as client:
        data = torch.utils.data.TensorDataset(torch.arange(8))
        n_workers = 2 if method == "fork" else 1  # a spawned one imports torch
        loader = fsdp.torch.DataLoader(data, 2, num_workers=n_workers, client=client, multiprocessing_context=method)
        assert [x.tolist() for (x,) in loader] == [[0, 1], [2, 3], [4, 5], [6, 7]]
    with pytest.raises(fsdp.Disconnected):
        iter(fsdp.torch.DataLoader(data, 2, num_workers=2))
    with pytest.raises(fsdp.Invalid, match="the loader's client is closed"):
        iter(loader)
    assert not multiprocessing.active_children()
    broker.stop()


def test_workers_wait_for_a_broker_as_the_client_does(broker, monkeypatch, tmp_path):
    def connect(path, reconnect):
        (tmp_path / str(os.getpid())).write_text(f"{path} {reconnect}")
        return fsdp.Client(path, reconnect=reconnect)

    monkeypatch.setattr(fsdp._loader, "Client", connect)
    with fsdp.connect(broker.path, reconnect=7) as client:
        options = {"num_workers": 2, "multiprocessing_context": "fork", "client": client}
        assert len(list(fsdp.torch.DataLoader(Samples(), 2, **options))) == 100
    assert [file.read_text() for file in tmp_path.iterdir()] == [f"{broker.path} 7"] * 2


def test_a_pipe_that_was_finalized_is_not_closed_again():
    """Python finalizes the parts of a cycle in any order."""
    tasks = fsdp._loader.Tasks(None, types.SimpleNamespace(close=lambda: None), 0)
    for end in (tasks._reader, tasks._writer):
        end.__del__()
    with open(os.devnull) as one, open(os.devnull) as other:
        tasks.close()
        os.fstat(one.fileno())
        os.fstat(other.fileno())


class Gated(Dataset):
    """Samples that exist when the trainer has made a file."""

    def __init__(self, path):
        self.path = path

    def __len__(self):
        return 40_000

    def __getitem__(self, i):
        until(self.path.exists, "the trainer goes on")
        return i


@pytest.fixture
def small_pipes(monkeypatch):
    """Pipes as the kernel makes them for a user who has many."""
    monkeypatch.setattr(fsdp._loader_tasks, "_PIPE_SIZE", 4096)


def test_the_trainer_does_not_wait_for_a_worker_to_read_tasks(broker, small_pipes, tmp_path):
    go = tmp_path / "go"
    loader = fsdp.torch.DataLoader(Gated(go), 5000, num_workers=2, multiprocessing_context="fork")
    batches = iter(loader)
    go.touch()
    assert torch.equal(torch.cat(list(batches)), torch.arange(40_000))


class Noted(Dataset):
    """Indices. Each batch that a worker fetches makes a file."""

    def __init__(self, folder):
        self.folder = folder

    def __len__(self):
        return 20_000

    def __getitems__(self, indices):
        (self.folder / str(indices[0])).touch()
        return indices


def test_tasks_reach_the_workers_while_the_trainer_works(broker, small_pipes, tmp_path):
    batches = iter(fsdp.torch.DataLoader(Noted(tmp_path), 5000, num_workers=2))
    until(lambda: len(list(tmp_path.iterdir())) == 4, "all batches are fetched in advance")
    assert torch.equal(torch.cat(list(batches)), torch.arange(20_000))
    until(lambda: batches._receiver._writer is None, "the thread that wrote has ended")


def test_no_task_is_lost_if_no_thread_can_be_started(broker, small_pipes, monkeypatch, tmp_path):
    def refuse(thread):
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    options = {"num_workers": 2, "multiprocessing_context": "fork"}
    batches = iter(fsdp.torch.DataLoader(Noted(tmp_path), 5000, **options))
    assert torch.equal(torch.cat(list(batches)), torch.arange(20_000))


def test_an_iterator_may_be_finalized_in_a_thread_that_has_its_lock(broker):
    batches = iter(fsdp.torch.DataLoader(Samples(), 2, num_workers=2))
    workers = batches._workers
    with batches._receiver._pipes:
        del batches
    until(lambda: not any(worker.is_alive() for worker in workers), "the workers end")


def test_a_worker_with_a_part_of_a_task_ends_with_the_iterator():
    link = types.SimpleNamespace(done=threading.Event())
    tasks = fsdp._loader_tasks.Tasks(link, types.SimpleNamespace(close=lambda: None), 0)
    end = os.dup(tasks._writer.fileno())  # as another worker has it
    tasks.write(b"part")
    with pytest.raises(queue.Empty):
        tasks.get(PATIENCE)
    link.done.set()
    assert tasks.get(PATIENCE) is None
    os.close(end)
    tasks.close()
