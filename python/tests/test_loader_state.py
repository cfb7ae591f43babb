"""Tests that fsdp.torch.DataLoader can continue where another one stopped.

Each case runs some epochs undisturbed and keeps the state after each batch. New
loaders that load one of these states must give what came after it, bit for bit.
"""

import functools
import gc
import io
import itertools
import pickle
import random
import re
import threading
import time

import numpy
import pytest
import torch
from torch.utils.data import Dataset, IterableDataset, Sampler, get_worker_info

import fsdp
import fsdp.torch
from fsdp import _loader_keeper


@pytest.fixture(autouse=True)
def few_cpus_are_enough(monkeypatch):
    """torch warns if there are more workers than CPUs."""
    monkeypatch.setattr(torch._utils, "cpu_count", lambda: 64)


@pytest.fixture(params=["always", "never"])
def kept(request, monkeypatch):
    """Makes workers send their state with each batch, or never within an epoch.
    In normal use they send it sometimes, depending on their speed."""
    monkeypatch.setattr(_loader_keeper, "_SHARE", 0 if request.param == "always" else 1e9)


def noise():
    """Returns a random number of each of the process's generators."""
    return [torch.rand(2), random.random(), float(numpy.random.randn())]


def seed(n):
    torch.manual_seed(n)
    random.seed(n)
    numpy.random.seed(n)


# --- data sets and samplers ---------------------------------------------------


class Numbers(Dataset):
    def __len__(self):
        return 23

    def __getitem__(self, i):
        return i, noise()


class Counting(Numbers):
    """A data set that has a state of its own."""

    def __init__(self):
        self.n_got = 0

    def __getitem__(self, i):
        self.n_got += 1
        return i, self.n_got, noise()

    def state_dict(self):
        return {"n_got": self.n_got}

    def load_state_dict(self, state):
        self.n_got = state["n_got"]


class Stream(IterableDataset):
    """A stream in which workers have different numbers of samples."""

    def __init__(self, n=23):
        self.n = n

    def numbers(self):
        info = get_worker_info()
        worker, n_workers = (info.id, info.num_workers) if info else (0, 1)
        return range(worker, self.n if worker != 1 else self.n // 2, n_workers)

    def __iter__(self):
        for i in self.numbers():
            yield i, noise()


class Position(Stream):
    """A stream that continues from its state at the next iter()."""

    def __init__(self, n=23):
        super().__init__(n)
        self.at, self.n_epochs, self.goes_on = 0, 0, False

    def __iter__(self):
        if not self.goes_on:
            self.at = 0
            self.n_epochs += 1
        self.goes_on = False
        for i in self.numbers()[self.at :]:
            self.at += 1
            yield i, self.n_epochs, noise()

    def state_dict(self):
        return {"at": self.at, "n_epochs": self.n_epochs}

    def load_state_dict(self, state):
        self.at, self.n_epochs, self.goes_on = state["at"], state["n_epochs"], True


class Reader:
    """An iterator that has a state, for a data set that has none."""

    def __init__(self, numbers):
        self.numbers, self.at = numbers, 0

    def __iter__(self):
        return self

    def __next__(self):
        if self.at == len(self.numbers):
            raise StopIteration
        self.at += 1
        return self.numbers[self.at - 1], noise()

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Read(Stream):
    def __iter__(self):
        return Reader(self.numbers())


class Backwards(Sampler):
    """A sampler that has no state_dict()."""

    def __iter__(self):
        chosen = [numpy.int64(i) for i in range(22, -1, -1) if random.random() < 0.9]
        yield from chosen


class Shuffled(Sampler):
    """A sampler whose state is that of its own random numbers."""

    def __init__(self):
        self.random, self.n_drawn, self.n_passed = random.Random(3), 0, 0
        self.before = self.random.getstate()

    def __iter__(self):
        self.before = self.random.getstate()
        order = self.random.sample(range(23), 23)
        self.n_drawn, self.n_passed = self.n_passed, 0
        for i in order[self.n_drawn :]:
            self.n_drawn += 1
            yield i

    def __len__(self):
        return 23

    def state_dict(self):
        return {"random": self.before, "n_drawn": self.n_drawn}

    def load_state_dict(self, state):
        self.random.setstate(state["random"])
        self.n_passed = state["n_drawn"]


class Batches(Shuffled):
    """A batch sampler that has a state, and whose batches differ in size."""

    def __iter__(self):
        indices = super().__iter__()
        while True:
            n = self.n_drawn % 3 + 1 if self.n_drawn else self.n_passed % 3 + 1
            batch = list(itertools.islice(indices, n))
            if not batch:
                return
            yield batch


class Walk:
    """An iterator that has a state, for a batch sampler that has none."""

    def __init__(self):
        self.at = 0

    def __iter__(self):
        return self

    def __next__(self):
        self.at += 1
        if self.at > 7:
            raise StopIteration
        return [self.at, 2 * self.at]

    def state_dict(self):
        return {"at": self.at}

    def load_state_dict(self, state):
        self.at = state["at"]


class Walks:
    def __iter__(self):
        return Walk()


# --- what comes after a state -------------------------------------------------


def bits(batch):
    if isinstance(batch, torch.Tensor):
        return str(batch.dtype), tuple(batch.shape), batch.numpy().tobytes()
    return [bits(one) for one in batch] if isinstance(batch, list) else batch


def saved(state):
    """Passes a state through a file, as a checkpoint does."""
    file = io.BytesIO()
    torch.save(state, file)
    file.seek(0)
    return torch.load(file, weights_only=True)


def undisturbed(loader, n_epochs):
    """Returns the batches, and the states by (epoch, number of batches). -1
    stands for the state before iter()."""
    batches, states = [], {}
    for epoch in range(n_epochs):
        states[epoch, -1] = loader.state_dict()
        batches.append([])
        iterator = iter(loader)
        states[epoch, 0] = loader.state_dict()
        for batch in iterator:
            batches[-1].append(bits(batch))
            states[epoch, len(batches[-1])] = loader.state_dict()
    return batches, states


def rest(loader, n_epochs):
    return [[bits(batch) for batch in loader] for _ in range(n_epochs)]


def check(make, points, n_epochs=2, **options):
    make = functools.partial(make, **options)
    seed(5)
    batches, states = undisturbed(make(), n_epochs)
    assert sum(map(len, batches)) > n_epochs
    for epoch, n in points:
        n = min(n, len(batches[epoch]))
        seed(99)
        loader = make()
        loader.load_state_dict(saved(states[epoch, n]))
        expected = [batches[epoch][max(n, 0) :], *batches[epoch + 1 :]]
        assert rest(loader, n_epochs - epoch) == expected, (epoch, n)


def generator():
    return torch.Generator().manual_seed(3)


def of(dataset=Numbers, **options):
    def make(**more):
        made = {k: v() if callable(v) else v for k, v in options.items()}
        return fsdp.torch.DataLoader(dataset(), **made, **more)

    return make


def replacing():
    return torch.utils.data.RandomSampler(range(23), True, 100, generator())


CASES = {
    "plain": of(batch_size=4),
    "shuffle": of(batch_size=4, shuffle=True),
    "generator": of(batch_size=4, shuffle=True, generator=generator),
    "drop_last": of(batch_size=4, shuffle=True, drop_last=True),
    "no_batches": of(batch_size=None),
    "sampler": of(batch_size=3, sampler=Backwards),
    "replacing": of(batch_size=9, sampler=replacing),
    "sampler_with_state": of(batch_size=3, sampler=Shuffled),
    "batch_sampler_with_state": of(batch_sampler=Batches),
    "sampler_whose_iterator_has_state": of(batch_sampler=Walks),
    "data_set_with_state": of(Counting, batch_size=4, shuffle=True),
    "stream": of(Stream, batch_size=2),
    "stream_of_samples": of(Stream, batch_size=None),
    "stream_drop_last": of(Stream, batch_size=3, drop_last=True),
    "stream_with_state": of(Position, batch_size=2),
    "stream_whose_iterator_has_state": of(Read, batch_size=2),
}


@pytest.mark.parametrize("name", CASES)
def test_a_state_without_workers_continues_the_epoch(name):
    points = [(0, -1), (0, 0), (0, 1), (0, 99), (1, -1), (1, 0), (1, 3), (2, 2)]
    check(CASES[name], points, n_epochs=3)


@pytest.mark.parametrize("kept", ["always"], indirect=True)
@pytest.mark.parametrize("name", CASES)
def test_a_state_with_workers_continues_the_epoch(broker, kept, name):
    check(CASES[name], [(0, 3)], num_workers=2)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("name", ["shuffle", "data_set_with_state", "stream", "stream_with_state"])
def test_a_state_of_any_batch_continues_the_epoch(broker, kept, name, persistent):
    options = {"num_workers": 2, "persistent_workers": persistent}
    points = [(0, 99), (1, 0), (1, 3)] if persistent else [(0, -1), (0, 2), (1, -1)]
    check(CASES[name], points, **options)


def keep_often(share, worker):
    """Sets what the fixture `kept` sets, which new processes do not inherit."""
    _loader_keeper._SHARE = share


def inheriting_nothing(context, share, n_workers=2):
    return {
        "num_workers": n_workers,
        "multiprocessing_context": context,
        "worker_init_fn": functools.partial(keep_often, share),
    }


@pytest.mark.parametrize("share", [0, 1e9], ids=["always", "never"])
@pytest.mark.parametrize("name", ["shuffle", "data_set_with_state", "stream", "stream_with_state"])
def test_a_state_with_workers_of_a_forkserver_continues_the_epoch(broker, forkserver, name, share):
    options = inheriting_nothing(forkserver, share)
    check(CASES[name], [(0, 3)], n_epochs=1, **options)
    # Persistent workers continue within an epoch, and in the next one.
    check(CASES[name], [(0, 2), (1, 3)], persistent_workers=True, **options)


# A spawned worker takes seconds to import torch, so there are only a few cases,
# with one worker. Several that inherit nothing are tested above.
@pytest.mark.parametrize("name, share", [("shuffle", 1e9), ("stream_with_state", 0)])
def test_a_state_with_spawned_workers_continues_the_epoch(broker, name, share):
    options = inheriting_nothing("spawn", share, n_workers=1)
    check(CASES[name], [(1, 3)], persistent_workers=True, **options)


def without_order(make, cut):
    """Returns the batches of an epoch that was continued after some of them,
    and those of the next epoch."""
    loader = make(num_workers=3, in_order=False)
    iterator = iter(loader)
    before = [bits(next(iterator)) for _ in range(cut)]
    state = saved(loader.state_dict())
    del iterator
    loader = make(num_workers=3, in_order=False)
    loader.load_state_dict(state)
    after, following = rest(loader, 2)
    return before + after, following


def numbers(batch):
    """Returns the numbers of the samples in a batch, without their random
    numbers."""
    return batch[0] if isinstance(batch, list) else batch


class Plain(Numbers):
    """A data set without random numbers, which would depend on the order of the
    workers."""

    def __getitem__(self, i):
        if i == 1:
            time.sleep(0.01)
        return i


@pytest.mark.parametrize("cut", [1, 4])
@pytest.mark.parametrize("dataset", [Plain, functools.partial(Stream, 40)])
def test_without_order_every_batch_is_received_once(broker, kept, dataset, cut):
    make = of(dataset, batch_size=2)
    expected = sorted(map(numbers, rest(make(num_workers=3), 1)[0]))
    for found in without_order(make, cut):
        assert sorted(map(numbers, found)) == expected


@pytest.mark.parametrize("options", [{}, {"num_workers": 2, "persistent_workers": True}])
def test_a_state_of_an_epoch_that_was_left_early_continues_it(broker, kept, options):
    make = functools.partial(of(Position, batch_size=2), **options)
    expected = rest(make(), 1)[0][3:]
    loader = make()
    for _ in zip(range(3), loader):
        pass
    left = saved(loader.state_dict())
    loader = make()
    loader.load_state_dict(left)
    (found,) = rest(loader, 1)
    assert [batch[:2] for batch in found] == [batch[:2] for batch in expected]


def test_an_epoch_can_be_continued_twice(broker, kept):
    """Uses the state of a loader that has itself loaded a state."""
    make = functools.partial(of(Counting, batch_size=2, shuffle=True), num_workers=2)
    seed(1)
    loader = make()
    expected = rest(loader, 1)[0]
    seed(1)
    loader = make()
    iterator = iter(loader)
    for n in range(2):
        assert bits(next(iterator)) == expected[n]
        state = saved(loader.state_dict())
        loader = make()
        loader.load_state_dict(state)
        # loading a state draws no random numbers
        assert saved(loader.state_dict()) == state
        iterator = iter(loader)
        assert saved(loader.state_dict())["epoch"]["workers"] == state["epoch"]["workers"]
    assert [bits(batch) for batch in iterator] == expected[2:]


class Failing(Numbers):
    def __getitem__(self, i):
        if i == 5:
            raise KeyError("sample 5")
        return super().__getitem__(i)


@pytest.mark.parametrize("n_workers", [0, 2])
def test_a_batch_that_failed_is_skipped(broker, kept, n_workers):
    make = functools.partial(of(Failing, batch_size=2), num_workers=n_workers)
    loader, found = make(), []
    iterator = iter(loader)
    next(iterator), next(iterator)
    with pytest.raises(KeyError):
        next(iterator)
    state = loader.state_dict()
    expected = [bits(batch) for batch in iterator]
    loader = make()
    loader.load_state_dict(state)
    assert rest(loader, 1) == [expected]


# --- errors -------------------------------------------------------------------


@pytest.mark.parametrize(
    "dataset, options, differs",
    [
        (Numbers, {"num_workers": 1}, "num_workers=0 (here 1)"),
        (Numbers, {"batch_size": 3}, "batch_size=2 (here 3)"),
        (Numbers, {"drop_last": True}, "drop_last=False (here True)"),
        (Numbers, {"shuffle": True}, "sampler='SequentialSampler' (here 'RandomSampler')"),
        (Stream, {}, "dataset='map-style' (here 'iterable')"),
    ],
)
def test_a_state_of_other_arguments_is_refused(dataset, options, differs):
    state = of(batch_size=2)().state_dict()
    loader = of(dataset, **{"batch_size": 2, **options})()
    with pytest.raises(fsdp.Invalid, match=re.escape(differs)):
        loader.load_state_dict(state)


@pytest.mark.parametrize("state", [{}, None, {"format": 2}, {"_snapshot": {}}])
def test_an_invalid_state_is_refused(state):
    with pytest.raises(fsdp.Invalid, match="it is not of fsdp.torch.DataLoader"):
        of()().load_state_dict(state)


def test_a_data_set_that_is_too_short_is_an_error():
    loader = fsdp.torch.DataLoader(range(9))
    list(itertools.islice(loader, 5))
    other = fsdp.torch.DataLoader(range(3))
    other.load_state_dict(loader.state_dict())
    with pytest.raises(fsdp.Invalid, match="after batch 5 of the epoch: the sampler has only 3"):
        iter(other)


class Unkept(Counting):
    def state_dict(self):
        return {"lock": threading.Lock()}


def test_a_state_that_cannot_be_sent_fails_only_calls_for_it(broker, kept):
    loader = of(Unkept, batch_size=12)(num_workers=1)
    iterator = iter(loader)
    next(iterator)
    if loader._fsdp_learned["progress"]._workers[0].kept is not None:
        with pytest.raises(TypeError, match="(?s)worker process 0.*Lock|pickle"):
            loader.state_dict()
    assert len(list(iterator)) == 1


class Unloadable(Counting):
    def load_state_dict(self, state):
        raise LookupError("it is of another data set")


@pytest.mark.parametrize("kept", ["always"], indirect=True)
def test_errors_of_load_state_dict_are_reported(broker, kept):
    loader = of(Unloadable, batch_size=4)(num_workers=1)
    iterator = iter(loader)
    next(iterator)
    state = loader.state_dict()
    loader = of(Unloadable, batch_size=4)(num_workers=1)
    loader.load_state_dict(state)
    with pytest.raises(LookupError, match="(?s)worker process 0.*of another data set"):
        next(iter(loader))
    # torch's error and the iterators are in a cycle, and the iterators need the
    # broker
    gc.collect()


def test_too_many_workers_are_refused():
    with pytest.raises(NotImplementedError, match="64 workers; use 63 at most"):
        of()(num_workers=64).state_dict()


# --- what it leaves alone -----------------------------------------------------


def test_continuing_draws_no_random_numbers(broker):
    make = functools.partial(of(batch_size=4, shuffle=True), num_workers=1)
    loader = make()
    next(iter(loader))
    state = loader.state_dict()
    loader = make()
    loader.load_state_dict(state)
    seed(2)
    expected = noise()
    seed(2)
    iter(loader)
    assert bits(noise()) == bits(expected)


def test_a_loader_can_be_copied_in_an_epoch():
    loader = of(batch_size=4)()
    iterator = iter(loader)
    next(iterator)
    assert len(list(pickle.loads(pickle.dumps(loader)))) == 6
