"""Plain batches: what workers of a data loader send without a pickle."""

import random

import numpy
import pytest
import torch
from torch.utils.data import DataLoader, Dataset
from torch.utils.dlpack import from_dlpack

import fsdp
import fsdp.torch
from fsdp import _batch
from fsdp._fsdp import read_plain, write_plain

SIZE = 4096
START = 1024  # the tensors are before it


def written(batch, records=None):
    """The memory of a message."""
    memory = bytearray(SIZE)
    end = write_plain(memory, START, batch, {} if records is None else records)
    assert end is None or START < end <= SIZE
    return end and memory


def read(memory):
    return read_plain(memory, from_dlpack)


def placed(shape, dtype, at=64):
    """Something in place of a tensor, and the dict with its record."""
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
def test_values_arrive_as_they_are(batch):
    found = read(written((batch,)))
    assert found == (batch,) and repr(found) == repr((batch,))


class Text(str):
    pass


@pytest.mark.parametrize(
    "batch",
    [2**63, {1, 2}, Text("x"), "\ud800", object(), torch.ones(1), print, b"x" * SIZE],
    ids=lambda batch: type(batch).__name__,
)
def test_what_is_not_plain_or_has_no_room_is_left_to_the_pickle(batch):
    assert written([1, batch]) is None


def test_what_contains_itself_is_left_to_the_pickle():
    batch = []
    batch.append(batch)
    assert written(batch) is None


def test_a_tensor_that_occurs_twice_is_left_to_the_pickle():
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
    """Nothing that is in the memory can make a read leave it."""
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
            n_refused += 1  # RuntimeError: torch has no such dtype
        else:
            for each in found.values() if isinstance(found, dict) else ():
                if isinstance(each, torch.Tensor):
                    each.clone()
    assert n_refused > 1000


def test_a_message_of_a_pickle_is_left_to_its_reader():
    assert read(bytearray(SIZE)) is None
    with pytest.raises(fsdp.Invalid):
        read(bytearray(8))


class Plain(Dataset):
    def __len__(self):
        return 8

    def __getitem__(self, i):
        pair = torch.arange(3) + i, {"text": str(i), "flag": i % 2 == 0}
        return {"pair": pair, "label": i, "weight": i / 2, "row": numpy.ones(4) * i}


def test_what_torch_collates_needs_no_pickle(broker, monkeypatch):
    expected = list(DataLoader(Plain(), 4))
    monkeypatch.setattr(_batch, "_Reader", None)
    assert repr(list(fsdp.torch.DataLoader(Plain(), 4, num_workers=1))) == repr(expected)
