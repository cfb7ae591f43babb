"""Tests plain batches, which workers of a data loader send without a pickle."""

import random

import numpy
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils.data import DataLoader, Dataset
from torch.utils.dlpack import from_dlpack

import fsdp
import fsdp.torch
from fsdp import _batch
from fsdp._fsdp import read_plain, stack_plain, write_plain

SIZE = 4096
START = 1024  # the tensors are before it


def written(batch, records=None):
    """Writes the batch. Returns the memory of the message."""
    memory = bytearray(SIZE)
    end = write_plain(memory, START, batch, {} if records is None else records)
    assert end is None or START < end <= SIZE
    return end and memory


def read(memory):
    return read_plain(memory, from_dlpack)


def placed(shape, dtype, at=64):
    """Returns an object that stands for a tensor, and the dict with its
    record."""
    thing = object()
    return thing, {id(thing): _batch.record_of(at, shape, dtype)}


@pytest.mark.parametrize(
    "batch",
    [
        None,
        [True, False, 0, -(2**63), 2**63 - 1, 1.5, float("inf")],
        {"a": ["x", "", "\0", "ä€😀"], 3: (b"", b"\0\xff"), (1, 2): {}},
        ([], (), {}, [[[[]]]]),
    ],
)
def test_values_are_received_unchanged(batch):
    found = read(written((batch,)))
    assert found == (batch,) and repr(found) == repr((batch,))


class Text(str):
    pass


@pytest.mark.parametrize(
    "batch",
    [2**63, {1, 2}, Text("x"), "\ud800", object(), torch.ones(1), print, b"x" * SIZE],
    ids=lambda batch: type(batch).__name__,
)
def test_batches_that_are_not_plain_or_too_large_are_pickled(batch):
    assert written([1, batch]) is None


def test_a_batch_that_contains_itself_is_pickled():
    batch = []
    batch.append(batch)
    assert written(batch) is None


def test_a_batch_with_a_tensor_that_occurs_twice_is_pickled():
    thing, records = placed((2,), torch.float32)
    assert written([thing], dict(records)) is not None
    assert written([thing, thing], records) is None


@pytest.mark.parametrize("dtype", _batch._CODES, ids=str)
@pytest.mark.parametrize("shape", [(), (3,), (2, 3)], ids=str)
def test_tensors_show_the_memory(dtype, shape):
    thing, records = placed(shape, dtype)
    memory = written({"x": thing}, records)
    found = read(memory)["x"]
    assert (found.shape, found.dtype, found.is_contiguous()) == (shape, dtype, True)
    found.fill_(1)
    assert bytes(memory[64 : 64 + found.nbytes]) == found.reshape(-1).view(
        torch.uint8
    ).numpy().tobytes()
    assert any(memory[64 : 64 + found.nbytes])


def test_the_last_tensor_frees_the_memory():
    first, records = placed((2,), torch.uint8)
    second, more = placed((2,), torch.uint8, at=128)
    memory = written((first, second), {**records, **more})
    found = list(read(memory))
    while found:
        with pytest.raises(BufferError):
            memory.clear()
        found.pop()
    memory.clear()


def test_damaged_messages_are_refused_or_read():
    """Whatever is in the memory, reading must not go beyond it."""
    thing, records = placed((2, 3), torch.float32)
    good = written({"x": thing, "y": [1, 2.5, "text", (None, b"bytes")]}, records)
    random.seed(7)
    n_refused = 0
    for _ in range(20_000):
        memory = bytearray(good)
        for _ in range(random.randint(1, 4)):
            at = random.choice((random.randrange(24), random.randrange(START, START + 200)))
            memory[at] = random.choice((0, 1, 0x7F, 0xFF, random.randrange(256)))
        try:
            found = read(memory)
        except (fsdp.Invalid, RuntimeError, BufferError, UnicodeDecodeError, TypeError):
            n_refused += 1  # a RuntimeError says that torch does not have the dtype
        else:
            for each in found.values() if isinstance(found, dict) else ():
                if isinstance(each, torch.Tensor):
                    each.clone()
    assert n_refused > 1000


def test_a_pickled_message_is_left_to_its_reader():
    assert read(bytearray(SIZE)) is None
    with pytest.raises(fsdp.Invalid):
        read(bytearray(8))


class Plain(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        pair = torch.arange(3) + i, {"text": str(i), "flag": i % 2 == 0}
        return {"pair": pair, "label": i, "weight": i / 2, "row": numpy.ones(4) * i}


def test_collated_batches_of_torch_need_no_pickle(broker, monkeypatch):
    expected = list(DataLoader(Plain(), 4))
    monkeypatch.setattr(_batch, "_Reader", None)
    assert repr(list(fsdp.torch.DataLoader(Plain(), 4, num_workers=1))) == repr(expected)


# --- stacking samples in place ------------------------------------------------

EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
needs_exchange = pytest.mark.skipif(EXCHANGE is None, reason="torch is older than 2.10")
SAMPLES = [
    {
        "x": torch.full((3, 5), i, dtype=torch.float32),
        "y": [torch.tensor(i), (i, float(i), "t" * i)],
        "low": torch.full((7,), i, dtype=torch.bfloat16),
        "mask": torch.tensor([True, i > 1]),
    }
    for i in range(4)
]


def stacked(samples, capacity=SIZE):
    """Stacks the samples and reads the batch back. Returns None if torch has to
    collate it."""
    memory = bytearray(capacity)
    found = stack_plain(memory, 64, samples, torch.Tensor, EXCHANGE)
    if found is None:
        return None
    batch = object()
    end = write_plain(memory, found[0], (7, 2**40, batch), {id(batch): found[1]})
    assert end <= capacity
    assert read(memory)[:2] == (7, 2**40)
    return read(memory)[2]


@needs_exchange
def test_samples_are_stacked_as_by_torch():
    batch, expected = stacked(SAMPLES), torch.utils.data.default_collate(SAMPLES)
    assert list(batch) == list(expected)
    for key in "x", "low", "mask":
        assert batch[key].dtype == expected[key].dtype
        assert torch.equal(batch[key], expected[key])
    assert torch.equal(batch["y"][0], expected["y"][0])
    for found, wanted in zip(batch["y"][1][:2], expected["y"][1]):
        assert found.dtype == wanted.dtype and torch.equal(found, wanted)
    assert batch["y"][1][2] == expected["y"][1][2]


@needs_exchange
@pytest.mark.parametrize(
    "sample",
    [torch.ones(3, requires_grad=True), torch.ones(2, 3).t(), torch.ones(0), None, True,
     torch.ones(3, device="meta"), torch.eye(3).to_sparse(), numpy.ones(3), torch.ones(3) * 1j,
     torch.tensor([1 + 2j]).conj().imag],
    ids=repr,
)
def test_other_samples_are_left_to_torch(sample):
    assert stacked([sample, sample]) is None
    assert stacked([torch.ones(3), sample]) is None
    assert stacked([{"a": torch.ones(3), "b": [sample]}] * 2) is None


@needs_exchange
def test_samples_without_capacity_are_left_to_torch():
    fits = [stacked(SAMPLES, capacity) is not None for capacity in range(0, SIZE, 8)]
    assert fits == sorted(fits) and fits[-1] and not fits[0]
    assert stacked(["x" * 100_000]) is None
    assert stacked([]) is None
    deep = torch.ones(1)
    for _ in range(40):
        deep = [deep]
    assert stacked([deep]) is None


@needs_exchange
def test_samples_may_change_while_they_are_stacked():
    class Change(TorchFunctionMode):
        def __torch_function__(self, function, types, args=(), kwargs=None):
            for sample in samples:
                sample.clear()
            return function(*args, **(kwargs or {}))

    samples = [[torch.ones(3), torch.ones(3)] for _ in range(4)]
    with Change():
        assert stacked(samples) is None


class Other:
    """A key with the hash of another one. A comparison with it clears a
    dict."""

    cleared = {}

    def __init__(self, key):
        self.hash = hash(key)

    def __hash__(self):
        return self.hash

    def __eq__(self, other):
        self.cleared.clear()
        return False


@needs_exchange
def test_keys_may_be_removed_while_samples_are_stacked(monkeypatch):
    def key():
        """Returns a key to which nothing else has a reference."""
        return "".join(("k", "ey"))

    samples = [{key(): 1}, {Other(key()): 0, key(): 1}, {key(): 1}]
    monkeypatch.setattr(Other, "cleared", samples[0])
    stacked(samples)
    assert samples[0] == {}
