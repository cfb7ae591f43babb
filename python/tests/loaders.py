"""What tests of fsdp.torch.DataLoader compare it by with torch's DataLoader:
data sets, and functions that run the same work with both.
"""

import collections
import random
import traceback
import warnings

import numpy
import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import fsdp.torch

LOADERS = {"torch": torch.utils.data.DataLoader, "fsdp": fsdp.torch.DataLoader}
Point = collections.namedtuple("Point", "x y")


# --- what is compared ---------------------------------------------------------


def same(a, b):
    """Returns whether two values are equal in everything that a program can
    see."""
    if type(a) is not type(b):
        return False
    if isinstance(a, torch.Tensor):
        form = ("dtype", "shape", "layout", "requires_grad", "is_leaf")
        if any(getattr(a, name) != getattr(b, name) for name in form):
            return False
        if a.layout is torch.strided and a.stride() != b.stride():
            return False
        if a.layout is not torch.strided:
            a, b = a.to_dense(), b.to_dense()
        return a.numel() == 0 or bytes_of(a) == bytes_of(b)
    if isinstance(a, numpy.ndarray):
        form = a.dtype, a.shape, a.flags.writeable
        return form == (b.dtype, b.shape, b.flags.writeable) and (a == b).all()
    if isinstance(a, collections.abc.Mapping):
        return list(a) == list(b) and all(same(a[key], b[key]) for key in a)
    if isinstance(a, (list, tuple)):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


def bytes_of(tensor):
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    return tensor.view(-1).view(torch.uint8).numpy().tobytes()


def outcome(loader, work):
    """Returns what work(loader) returns or how it fails, and its warnings."""
    torch.manual_seed(7)
    random.seed(7)
    numpy.random.seed(7)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            result = work(loader)
        except Exception as error:
            forget(error)
            result = type(error).__name__, plain(str(error))
    said = [plain(str(w.message)) for w in caught if w.category is UserWarning]
    return result, said


def forget(error):
    """Drops what the frames of an error keep. One frame of torch keeps the error
    itself, and so the iterator. If garbage collection drops these, it may close
    the iterator's queues first, and then torch waits 5 s for each worker."""
    traceback.clear_frames(error.__traceback__)


def plain(text):
    """Removes what differs from run to run, such as process numbers and
    addresses."""
    lines = [line for line in text.splitlines() if "^^^" not in line]
    words = " ".join(lines).split()
    return " ".join("N" if word.strip("().,").isdigit() else word for word in words)


def compare(work):
    expected = outcome(LOADERS["torch"], work)
    found = outcome(LOADERS["fsdp"], work)
    assert same(found, expected), f"{found}\nis not\n{expected}"
    return found[0]


# --- data sets ----------------------------------------------------------------


class Numbers(Dataset):
    """Samples of all types that torch collates, with a random number of each
    generator."""

    def __init__(self, n=24, fails_at=None):
        self.n, self.fails_at = n, fails_at

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        if i == self.fails_at:
            raise KeyError(f"sample {i}")
        return {
            "x": torch.full((20, 30), float(i)) + torch.rand(20, 30),
            "pair": (i, float(i)),
            "point": Point(torch.tensor(i), numpy.full(300, i, dtype="f4")),
            "text": str(i),
            "raw": bytes([i]),
            "seeds": [random.random(), numpy.random.rand()],
            "empty": torch.empty(0, 3),
        }


class Few(Numbers):
    """A data set that is asked for whole batches of indices."""

    def __getitems__(self, indices):
        return [self[i] for i in indices]


class Stream(IterableDataset):
    """A stream in which workers have different numbers of samples."""

    def __init__(self, n=20, length=None):
        self.n, self.length = n, length

    def __iter__(self):
        info = get_worker_info()
        first, step = (info.id, info.num_workers) if info else (0, 1)
        for i in range(first, self.n if first != 1 else self.n // 2, step):
            yield torch.full((500,), i)

    def __len__(self):
        if self.length is None:
            raise TypeError("it has no length")
        return self.length


class Things(Dataset):
    """A data set of the given samples."""

    def __init__(self, *things):
        self.things = things

    def __len__(self):
        return len(self.things)

    def __getitem__(self, i):
        thing = self.things[i]
        return thing() if callable(thing) else thing


class Info(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        info = get_worker_info()
        return info.id, info.num_workers, info.seed, torch.initial_seed(), len(info.dataset)


def identity(samples):
    return samples


def keys(samples):
    """A collate_fn of a user."""
    return [tuple(sample["x"] for sample in samples), samples[0]["text"], {"n": None}]


def seeded(worker):
    torch.manual_seed(100 + worker)
    random.seed(worker)


def failing(worker):
    raise ValueError(f"worker {worker}")


def epochs(n=1, dataset=Numbers, **options):
    """Returns work that reads the batches of n epochs."""

    def work(loader):
        options.setdefault("num_workers", 2)
        batches = loader(dataset(), **options)
        return [list(batches) for _ in range(n)]

    return work
