"""Tests fsdp.torch.pack(): torch's loader must give the same batches with it as
without it.
"""

import os
import signal

import numpy
# imported here, because a process that torch forks may fail to
# (python/cpython#91351)
import numpy.random
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

import fsdp
import fsdp.torch
from conftest import until
from loaders import forget

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")


class Samples(Dataset):
    """A data set of 64 samples of some kilobytes, with all types that torch
    collates."""

    def __init__(self, fails_at=None, dies_at=None):
        self.fails_at, self.dies_at = fails_at, dies_at

    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == self.fails_at:
            raise KeyError(f"sample {i}")
        if i == self.dies_at:
            os.kill(os.getpid(), signal.SIGKILL)
        x = torch.full((20, 30), float(i))
        return {"x": x + torch.rand(20, 30), "i": i, "s": str(i), "n": numpy.full(300, i)}


class Stream(IterableDataset):
    def __iter__(self):
        info = get_worker_info()
        yield from (torch.full((500,), i) for i in range(info.id, 20, info.num_workers))


def equal(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(equal(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(equal, a, b))
    return type(a) is type(b) and a == b


def loader(is_packed, dataset=None, collate_fn=None, **options):
    if is_packed:
        collate_fn = fsdp.torch.pack(collate_fn)
    torch.manual_seed(7)
    options = {"batch_size": 4, "num_workers": 2, **options}
    return DataLoader(dataset or Samples(), collate_fn=collate_fn, **options)


def values(samples):
    """A collate_fn of a user."""
    return [tuple(sample["x"] for sample in samples), samples[0]["s"]]


OPTIONS = {
    "plain": {},
    "shuffled": {"shuffle": True},
    "one_worker": {"num_workers": 1, "batch_size": 7, "drop_last": True},
    "no_workers": {"num_workers": 0},
    "any_order_prefetch": {"prefetch_factor": 5},
    "own_collate": {"collate_fn": values},
    "stream": {"dataset": Stream()},
}


@pytest.mark.parametrize("name", OPTIONS)
def test_batches_equal_those_of_torch(broker, name):
    expected = list(loader(False, **OPTIONS[name]))
    # keeps all batches, which are more than there are buffers
    got = list(loader(True, **OPTIONS[name]))
    assert len(expected) > 4 and equal(got, expected)


def test_a_spawned_worker_sends_the_batches_of_a_forked_one(broker):
    # Several workers are forked ones above, since a spawned one imports torch.
    expected = list(loader(False, num_workers=1))
    got = list(loader(True, num_workers=1, multiprocessing_context="spawn"))
    assert len(expected) > 4 and equal(got, expected)


def test_batches_are_in_memory_of_the_broker_and_can_be_changed(broker):
    for batch in loader(True):
        before = batch["x"].clone()
        batch["x"].mul_(2)
        assert torch.equal(batch["x"], before * 2)
    with open("/proc/self/maps") as file:
        mapped = [line.split(None, 5) for line in file if "fsdp" in line]
    ranges = [[int(x, 16) for x in m[0].split("-")] for m in mapped]
    at = batch["x"].data_ptr()
    assert any(first <= at < last for first, last in ranges)


def test_workers_may_persist_and_epochs_be_left_early(broker):
    def epochs(is_packed):
        batches = loader(is_packed, persistent_workers=True)
        for epoch in range(3):
            for n, batch in enumerate(batches):
                yield batch
                if epoch == 1 and n == 3:
                    break

    assert equal(list(epochs(True)), list(epochs(False)))


@pytest.mark.parametrize("is_packed", [False, True])
def test_errors_have_the_traceback_of_the_worker(broker, is_packed):
    with pytest.raises(KeyError, match="(?s)in DataLoader worker process.*sample 9") as raised:
        list(loader(is_packed, Samples(fails_at=9)))
    forget(raised.value)


def test_the_death_of_a_worker_is_an_error(broker):
    with pytest.raises(RuntimeError, match="exited unexpectedly|killed by signal"):
        list(loader(True, Samples(dies_at=9)))


def test_channels_of_workers_that_have_ended_are_closed(broker):
    for _ in range(3):
        list(loader(True))
    channels = fsdp._pack._receivers
    until(lambda: sum(ch.info()["producers"] for ch in channels.values()) == 0, "end")
    ended = {name for name, ch in channels.items() if ch.info()["queued"] == 0}
    list(loader(True))
    assert ended and not ended & set(channels)


def test_channels_have_a_first_component_of_the_user(broker):
    batches = iter(loader(True))
    next(batches)
    names = list(fsdp._pack._receivers)
    assert names and all(name.startswith(f"loader.{os.getuid()}/") for name in names)
