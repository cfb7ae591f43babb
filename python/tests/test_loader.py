"""Tests that fsdp.torch.DataLoader does what torch's DataLoader does.

Each case runs with both, with the same seed, and the batches, errors and
warnings are compared.
"""

import collections
import gc
import inspect
import mmap
import os
import signal
import threading
import time
import warnings

import numpy
import pytest
import torch
import torch.utils.data
from torch.utils.data import Dataset, IterableDataset, get_worker_info

import fsdp
import fsdp.torch
from conftest import PATIENCE, Broker, run
from loaders import (
    LOADERS,
    Few,
    Info,
    Numbers,
    Point,
    Stream,
    Things,
    compare,
    epochs,
    failing,
    forget,
    identity,
    keys,
    outcome,
    same,
    seeded,
)

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")
BOTH = pytest.mark.parametrize("loader", LOADERS.values(), ids=LOADERS)

@pytest.fixture(autouse=True)
def few_cpus_are_enough(monkeypatch):
    """torch warns if there are more workers than CPUs."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(64))


# --- arguments ----------------------------------------------------------------

ARGUMENTS = {
    "default": {},
    "batch_size": {"batch_size": 5},
    "drop_last": {"batch_size": 5, "drop_last": True},
    "shuffle": {"batch_size": 4, "shuffle": True},
    "generator": {
        "batch_size": 4,
        "shuffle": True,
        "generator": torch.Generator().manual_seed(3),
    },
    "sampler": {"batch_size": 4, "sampler": list(range(20, 0, -3))},
    "batch_sampler": {"batch_sampler": [[1, 2], [3], [4, 5, 6, 7, 8]]},
    "no_batches": {"batch_size": None},
    "no_workers": {"num_workers": 0, "batch_size": 4},
    "one_worker": {"num_workers": 1, "batch_size": 4},
    "three_workers": {"num_workers": 3, "batch_size": 2, "shuffle": True},
    "more_workers_than_batches": {"num_workers": 3, "batch_size": 20},
    "own_collate": {"batch_size": 4, "collate_fn": keys},
    "uncollated": {"batch_size": 4, "collate_fn": identity},
    "whole_batches": {"dataset": Few, "batch_size": 4},
    "worker_init": {"batch_size": 4, "worker_init_fn": seeded},
    "prefetch": {"batch_size": 2, "prefetch_factor": 5},
    "timeout_that_is_enough": {"batch_size": 4, "timeout": 60},
    "pin_memory": {"batch_size": 4, "pin_memory": True, "pin_memory_device": "cuda"},
    "forked": {"batch_size": 4, "multiprocessing_context": "fork"},
    "info": {"dataset": Info, "batch_size": 2, "shuffle": True},
    "stream": {"dataset": Stream, "batch_size": 3},
    "stream_drop_last": {"dataset": Stream, "batch_size": 3, "drop_last": True},
    "stream_of_samples": {"dataset": Stream, "batch_size": None},
    "empty": {"dataset": lambda: Numbers(0)},
    "empty_stream": {"dataset": lambda: Stream(0)},
}
# without a GPU this torch pins nothing unless a device is named
if torch.__version__ < "2":
    del ARGUMENTS["pin_memory"]["pin_memory_device"]


@pytest.mark.parametrize("name", ARGUMENTS)
def test_arguments_work_as_in_torch(broker, name):
    options = dict(ARGUMENTS[name])
    generator = options.pop("generator", None)

    def work(loader):
        if generator is not None:
            options["generator"] = generator.manual_seed(3)
        return epochs(2, **options)(loader)

    compare(work)


@pytest.mark.parametrize(
    "options",
    [
        {"num_workers": -1},
        {"timeout": -1},
        {"num_workers": 0, "prefetch_factor": 3},
        {"num_workers": 0, "persistent_workers": True},
        {"multiprocessing_context": "thread"},
        {"multiprocessing_context": 3},
        {"num_workers": 0, "multiprocessing_context": "fork"},
        {"batch_size": None, "drop_last": True},
        {"shuffle": True, "sampler": [1]},
        {"dataset": Stream, "shuffle": True},
    ],
    ids=str,
)
def test_invalid_arguments_are_refused_with_the_messages_of_torch(broker, options):
    kind, _ = compare(epochs(**options))
    assert kind in ("ValueError", "TypeError", "AssertionError")


@pytest.mark.parametrize("method", ["spawn", "forkserver"])
def test_workers_can_be_started_by_other_methods(broker, forkserver, method):
    expected = outcome(LOADERS["torch"], epochs(num_workers=1, batch_size=6))
    work = epochs(num_workers=1, batch_size=6, multiprocessing_context=method)
    assert same(outcome(LOADERS["fsdp"], work), expected)


@pytest.mark.skipif(
    "in_order" not in inspect.signature(LOADERS["torch"]).parameters,
    reason=f"torch {torch.__version__} has no DataLoader(in_order=False)",
)
def test_without_order_all_batches_are_received(broker):
    batches = fsdp.torch.DataLoader(Stream(40), 2, num_workers=3, in_order=False)
    found = [int(i) for batch in batches for i in batch[:, 0]]
    expected = torch.utils.data.DataLoader(Stream(40), 2, num_workers=3)
    assert sorted(found) == sorted(int(i) for batch in expected for i in batch[:, 0])


def test_attributes_equal_those_of_torch(broker):
    def work(loader):
        batches = loader(Numbers(), 4, num_workers=2)
        with pytest.raises(ValueError, match="after DataLoader is initialized"):
            batches.batch_size = 3
        list(batches)
        names = ("num_workers", "batch_size", "prefetch_factor", "collate_fn", "timeout")
        return len(batches), [getattr(batches, name) for name in names]

    compare(work)
    assert issubclass(fsdp.torch.DataLoader, torch.utils.data.DataLoader)


@BOTH
def test_annotations_may_say_what_the_samples_are(broker, loader):
    def first(batches: loader[int]):
        return next(iter(batches))

    assert first(loader[int]([5, 6], num_workers=1)).tolist() == [5]


def test_wrong_lengths_of_streams_are_reported_as_by_torch(broker):
    def work(loader):
        batches = loader(Stream(20, length=10), 2, num_workers=2)
        return len(batches), list(batches)

    compare(work)


# --- epochs -------------------------------------------------------------------


@pytest.mark.parametrize("dataset", [Numbers, Stream])
def test_workers_may_persist_and_epochs_be_left_early(broker, dataset):
    def work(loader):
        options = {"num_workers": 2, "persistent_workers": True}
        batches, found = loader(dataset(), 2, **options), []
        for epoch in range(4):
            for n, batch in enumerate(batches):
                found.append(batch)
                if n == epoch:
                    break
        return found, list(batches), list(batches)

    compare(work)


def test_several_iterators_run_at_a_time(broker):
    def work(loader):
        batches = loader(Numbers(), 4, num_workers=1)
        one, other = iter(batches), iter(batches)
        found = [next(one), next(other), next(one)]
        found += [list(zip(one, other)), len(one)]
        return found

    compare(work)


def test_an_iterator_that_has_ended_stays_at_its_end(broker):
    def work(loader):
        iterator = iter(loader(Numbers(), 12, num_workers=2))
        list(iterator)
        return [next(iterator, "end") for _ in range(2)]

    assert compare(work) == ["end", "end"]


def test_an_iterator_cannot_be_pickled(broker):
    import pickle

    compare(lambda loader: pickle.dumps(iter(loader(Numbers(), num_workers=1))))


# --- what batches are made of -------------------------------------------------

BASE = torch.arange(60, dtype=torch.float32)
DTYPES = sorted(
    {v for v in vars(torch).values() if isinstance(v, torch.dtype)}
    - {torch.complex32},  # torch warns that it is experimental
    key=str,
)


def tensor_of(dtype):
    """Returns 24 elements with many different bits, or None if torch itself
    cannot make them."""
    has_size = hasattr(dtype, "itemsize")  # since torch 2.1
    size = 24 * (dtype.itemsize if has_size else torch._utils._element_size(dtype))
    data = torch.arange(size, dtype=torch.int16).to(torch.uint8) % 2
    try:
        tensor = data.view(dtype)
        tensor.clone().reshape(4, 6)[1:, ::2].clone()
    except RuntimeError:
        return None
    return tensor.reshape(4, 6)


def test_tensors_of_every_dtype_equal_those_of_torch(broker):
    tensors = [tensor for dtype in DTYPES if (tensor := tensor_of(dtype)) is not None]
    assert len(tensors) >= (12 if torch.__version__ < "2" else 19)
    things = Things(*tensors, *(tensor[1:, ::2] for tensor in tensors))
    compare(lambda loader: list(loader(things, batch_size=None, num_workers=1)))


class Mine(torch.Tensor):
    pass


LAYOUTS = {
    "transposed": BASE.view(6, 10).t(),
    "strided": BASE[3:50:7],
    "middle": BASE[21:33].view(3, 4),
    "expanded": BASE[:3].expand(5, 3),
    "scalar": torch.tensor(3.5),
    "empty": torch.empty(0),
    "empty_strided": BASE.view(6, 10)[2:2, ::3],
    "channels_last": BASE.view(1, 3, 4, 5).contiguous(memory_format=torch.channels_last),
    "overlapping": BASE.as_strided((4, 3), (2, 1), 5),
    "requires_grad": torch.ones(300, requires_grad=True),
    "parameter": torch.nn.Parameter(torch.ones(3, 4)),
    "array": numpy.arange(600).reshape(20, 30),
    "fortran": numpy.asfortranarray(numpy.arange(600).reshape(20, 30)),
    "sliced": numpy.arange(600)[::2],
    "records": numpy.zeros(200, dtype=[("a", "i4"), ("b", "f8")]),
    "objects": numpy.array([None, "x"] * 200),
    "scalars": [1, 2.5, 3j, True, None, "text", b"raw", b"x" * 5000, 2**100],
    "containers": {"set": {1, 2}, (1, 2): [[], {}, ()], "od": collections.OrderedDict(a=1)},
    "named": Point(BASE, {"y": [BASE[:5]]}),
    "ellipsis": (..., range(3), slice(2), int, torch.float16, torch.Size([2])),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensors_of_various_layouts_equal_those_of_torch(broker, name):
    things = Things(LAYOUTS[name], (LAYOUTS[name], 1))
    options = {"batch_size": 1, "num_workers": 1, "collate_fn": identity}
    compare(lambda loader: list(loader(things, **options)))


NEGATED = torch.tensor([1 + 2j, 3 - 4j]).conj().imag
NESTED = [
    {"a": [torch.full((2, 3), i), ("x" * i, i)], "b": (b"y", {"c": 2.5 * i}), "d": [[]]}
    for i in range(2)
]
COLLATED = {
    "nested": NESTED,
    "nested_tuples": [(each, "x", (torch.tensor(1.5),)) for each in NESTED],
    "same_twice": (BASE, BASE),
    "grad_later": (torch.ones(3), torch.ones(3, requires_grad=True)),
    "negated_later": (torch.ones(2), NEGATED),
    "strided_later": (torch.ones(10, 6), BASE.view(6, 10).t()),
    "class_later": (torch.ones(3), torch.ones(3).as_subclass(Mine)),
    "scalars": (torch.tensor(1), torch.tensor(2)),
    "empty": (torch.empty(0, 3), torch.empty(0, 3)),
    "empty_containers": ([{}, [], ()], [{}, [], ()]),
    "large_ints": (2**63 - 1, -(2**63)),
    "too_large_ints": (1, 2**63),
    "bools": (True, False),
    "int_and_bool": (1, True),
    "int_and_float": (1, 2.5),
    "text_and_int": ("x", 5),
    "no_unicode": ("\ud800", "x"),
    "other_order": ({"a": 1, "b": 2}, {"b": 4, "a": 3}),
    "one_key_more": ({"a": 1}, {"b": 4, "a": 3}),
    "one_key_less": ({"a": 1, "b": 2}, {"a": 3}),
    "keys": ({1: 2, (3, "x"): 4.0}, {(3, "x"): 5.0, 1: 6}),
    "ordered": (collections.OrderedDict(a=1), collections.OrderedDict(a=2)),
    "list_and_tuple": ([1, 2], (3, 4)),
    "unequal": (torch.ones(3), torch.ones(4)),
    "mixed_dtypes": (torch.ones(3), torch.ones(3, dtype=torch.int32)),
    "transposed": (BASE.view(6, 10).t(), BASE.view(6, 10).t()),
    "expanded": (BASE[:3].expand(5, 3), BASE[:3].expand(5, 3)),
    "requires_grad": (torch.ones(3, requires_grad=True), torch.ones(3)),
    "sparse": (torch.eye(4).to_sparse(), torch.eye(4).to_sparse()),
    "conjugate": (torch.tensor([1 + 2j]).conj(), torch.tensor([3j]).conj()),
    "none": (None, None),
    "unequal_lists": ([1, 2], [1]),
    "mixed": ({"x": torch.ones(3), "y": object()}, {"x": torch.ones(3), "y": 1}),
    "arrays_of_text": (numpy.array(["a"]), numpy.array(["b"])),
    "read_only": (numpy.broadcast_to(numpy.ones(1), 500), numpy.ones(500)),
}
if torch.__version__ < "2":  # the loader of this torch waits for ever
    del COLLATED["class_later"]


@pytest.mark.parametrize("name", COLLATED)
def test_samples_are_collated_or_refused_as_by_torch(broker, name):
    things = Things(*COLLATED[name], *(torch.ones(300), torch.zeros(300)))

    def work(loader):
        iterator = iter(loader(things, 2, num_workers=1))
        found = []
        for _ in range(2):
            try:
                found.append(next(iterator))
            except Exception as error:
                forget(error)
                # Only the frames between the first and the last line differ.
                last = str(error).rstrip().splitlines()[-1]
                found.append((type(error).__name__, plain(last)))
        return found

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        compare(work)


def test_a_collate_function_that_was_replaced_is_used(broker, monkeypatch):
    known = torch.utils.data._utils.collate.default_collate_fn_map
    monkeypatch.setitem(known, torch.Tensor, lambda batch, *, collate_fn_map: len(batch))
    found = compare(epochs(batch_size=4))
    assert found[0][0]["x"] == 4


def test_tensors_share_the_same_memory_as_before(broker):
    things = Things(lambda: (lambda x: (x, x, x[1], x.t()))(torch.ones(400, 300)))

    def work(loader):
        ((one, same_one, row, turned),) = loader(things, batch_size=None, num_workers=1)
        row.fill_(5)
        return one is same_one, one, turned

    compare(work)


def test_autograd_allows_in_place_changes_of_other_tensors(broker):
    ((x, y),) = fsdp.torch.DataLoader(
        Things(lambda: (torch.ones(300), torch.ones(300))), None, num_workers=1
    )
    w = torch.ones(300, requires_grad=True)
    loss = (w * x).sum()
    y.add_(1)
    loss.backward()
    assert torch.equal(w.grad, torch.ones(300)) and not y._is_view()


# --- memory -------------------------------------------------------------------


def is_of_the_broker(tensor):
    with open("/proc/self/maps") as file:
        ranges = [line.split()[0].split("-") for line in file if "fsdp" in line]
    at = tensor.data_ptr()
    return any(int(first, 16) <= at < int(end, 16) for first, end in ranges)


class Large(Dataset):
    def __init__(self, n=24, size=1 << 17):
        self.n, self.size = n, size

    def __len__(self):
        return self.n

    def __getitem__(self, i):
        return torch.full((self.size,), i, dtype=torch.uint8)


def test_batches_are_in_memory_of_the_broker_and_can_be_changed(broker):
    batches = fsdp.torch.DataLoader(Large(), 4, num_workers=2)
    list(batches)  # workers learn from the first batches how large a batch is
    for n, batch in enumerate(batches):
        assert is_of_the_broker(batch)
        batch += 1
        assert int(batch[0, 0]) == 4 * n + 1


def test_a_buffer_is_freed_with_its_batch(broker):
    batches = iter(fsdp.torch.DataLoader(Large(24, 4096), 2, num_workers=1))
    gc.disable()
    try:
        for batch in batches:
            (channel,) = batches._worker_result_queue._receiver._generations
            del batch
            assert channel.port.held == 0
    finally:
        gc.enable()


def test_all_batches_may_be_kept_and_changed(broker):
    batches = fsdp.torch.DataLoader(Large(160, 4096), 2, num_workers=2)
    kept = [(batch.add_(1), batch) for batch in batches]
    assert [int(batch[1, -1]) for _, batch in kept] == list(range(2, 162, 2))
    again = [batch for batch in batches]
    assert [int(batch[1, -1]) for batch in again] == list(range(1, 161, 2))
    assert [int(batch[1, -1]) for _, batch in kept] == list(range(2, 162, 2))


def test_all_batches_of_persistent_workers_may_be_kept(broker):
    options = {"num_workers": 3, "persistent_workers": True, "shuffle": True}
    batches = fsdp.torch.DataLoader(Large(60, 4096), 1, **options)
    kept = [batch for _ in range(3) for batch in batches]
    assert sorted(int(batch[0, 0]) for batch in kept) == sorted(list(range(60)) * 3)


mapped = []


def fill_addresses(worker):
    """Maps memory wherever the process has a place for it."""
    mapped.extend(mmap.mmap(-1, 1 << 20) for _ in range(400))


def test_a_forked_worker_never_reads_other_bytes_for_a_kept_batch(broker):
    batches = fsdp.torch.DataLoader(Large(), 4, num_workers=1)
    list(batches)  # workers learn from the first batches how large a batch is
    kept = list(batches)
    assert is_of_the_broker(kept[0])
    options = {"num_workers": 1, "worker_init_fn": fill_addresses}
    again = torch.utils.data.DataLoader(kept, batch_size=None, **options)
    with pytest.raises(RuntimeError, match="exited unexpectedly|killed by signal"):
        list(again)


def test_batches_may_grow(broker):
    sizes = [1000 * 2**n for n in range(12)]
    things = Things(*(torch.full((size,), size) for size in sizes * 2))
    found = list(fsdp.torch.DataLoader(things, None, num_workers=2))
    assert [(len(batch), int(batch[-1])) for batch in found] == [(n, n) for n in sizes * 2]


def test_a_batch_may_leave_no_room_for_the_state_of_its_worker(broker):
    # A buffer has 262,144 bytes at first, and a state takes some 10,000.
    samples = [torch.full((16000,), float(i)) for i in range(8)]
    compare(epochs(dataset=lambda: Things(*samples), num_workers=1, batch_size=4))


@pytest.fixture
def small_broker(monkeypatch):
    """A broker with 8 MiB, to which this process and its workers connect."""
    broker, clients = Broker("--set", "memory_max=8M"), {}

    def connected(path=None):
        if os.getpid() not in clients:
            clients[os.getpid()] = fsdp.connect(broker.path)
        return clients[os.getpid()]

    monkeypatch.setattr(fsdp._loader, "default", connected)
    yield broker
    clients[os.getpid()].close()
    broker.stop()


def test_without_memory_for_buffers_batches_are_still_received(small_broker):
    batches = fsdp.torch.DataLoader(Large(24, 1 << 18), 4, num_workers=2)
    kept = [batch for _ in range(2) for batch in batches]
    assert [int(batch[3, -1]) for batch in kept] == 2 * list(range(3, 24, 4))


def test_a_batch_that_is_kept_keeps_no_channel(broker):
    kept = []
    for _ in range(3):
        batches = iter(fsdp.torch.DataLoader(Large(8, 4096), 2, num_workers=1))
        kept.append(next(batches))
        receiver = batches._worker_result_queue._receiver
        names = [one.channel.name for one in receiver._generations]
        del batches, receiver
        for name in names:
            with pytest.raises(fsdp.NotFound):
                fsdp.default().channel(name, timeout=0)
    assert all(int(batch[1, -1]) == 1 for batch in kept)


# --- errors -------------------------------------------------------------------


def test_errors_of_data_sets_have_the_traceback_of_the_worker(broker):
    kind, text = compare(epochs(dataset=lambda: Numbers(fails_at=9), batch_size=4))
    assert kind == "KeyError" and "in DataLoader worker process N" in text


def test_loading_continues_after_an_error(broker):
    def work(loader):
        iterator, found = iter(loader(Numbers(fails_at=5), 4, num_workers=2)), []
        while True:
            try:
                found.append(next(iterator))
            except KeyError as error:
                forget(error)
                found.append("error")
            except StopIteration:
                return found

    assert compare(work)[1] == "error"


def test_errors_of_worker_init_fn_are_reported(broker):
    assert compare(epochs(worker_init_fn=failing))[0] == "ValueError"


def test_errors_of_iterators_are_reported(broker):
    class Broken(IterableDataset):
        def __iter__(self):
            yield 1
            raise OSError(5, "the disk is gone")

    assert compare(epochs(dataset=Broken, num_workers=1))[0] == "OSError"


def test_a_sample_that_cannot_be_pickled_is_an_error(broker):
    """torch's own loader waits for ever in this case."""
    things = Things(torch.ones(3), threading.Lock)
    iterator = iter(fsdp.torch.DataLoader(things, None, num_workers=1))
    next(iterator)
    with pytest.raises(TypeError, match="(?s)DataLoader worker process 0.*cannot pickle"):
        next(iterator)


class Dying(Dataset):
    def __init__(self, how):
        self.how = how

    def __len__(self):
        return 64

    def __getitem__(self, i):
        if i == 20:
            self.how()
        return torch.full((2000,), i)


def kill_me():
    os.kill(os.getpid(), signal.SIGKILL)


def exit_7():
    os._exit(7)


@pytest.mark.parametrize("how", [kill_me, exit_7])
def test_the_death_of_a_worker_is_an_error(broker, how):
    """torch's own loader may raise the error of its connection to the worker
    instead."""
    found = []
    with pytest.raises(RuntimeError, match="exited unexpectedly|killed by signal"):
        for batch in fsdp.torch.DataLoader(Dying(how), 4, num_workers=2):
            found.append(int(batch[0, 0]))
    assert found == list(range(0, 4 * len(found), 4))


def stall():
    time.sleep(600)


@pytest.fixture
def stalled_workers_end_soon(monkeypatch):
    """Shortens the time that torch waits for workers before it terminates
    them."""
    monkeypatch.setattr(torch.utils.data._utils, "MP_STATUS_CHECK_INTERVAL", 0.1)


@BOTH
@pytest.mark.usefixtures("stalled_workers_end_soon")
def test_a_timeout_is_an_error(broker, loader):
    things = Things(torch.ones(3), stall)
    with pytest.raises(RuntimeError, match="DataLoader timed out after 1 seconds"):
        list(loader(things, None, num_workers=1, timeout=1))


@pytest.mark.usefixtures("stalled_workers_end_soon")
def test_ctrl_c_ends_the_wait(broker):
    things = Things(torch.ones(3), stall)
    batches = iter(fsdp.torch.DataLoader(things, None, num_workers=1))
    next(batches)
    with pytest.raises(KeyboardInterrupt):
        threading.Timer(0.2, signal.raise_signal, [signal.SIGINT]).start()
        next(batches)


@pytest.mark.skipif(torch.__version__ < "2.10", reason="the names in torch differ")
def test_the_thread_that_pins_memory_may_start_before_the_first_task(broker, monkeypatch):
    """This machine needs no accelerator: nothing is really pinned."""
    Receiver = fsdp._loader._Receiver
    begin_task, receive, has_started = Receiver.begin_task, Receiver.receive, threading.Event()

    def begin_later(*arguments):
        assert has_started.wait(PATIENCE)
        return begin_task(*arguments)

    def receive_first(*arguments):
        try:
            return receive(*arguments)
        finally:
            has_started.set()

    monkeypatch.setattr(Receiver, "begin_task", begin_later)
    monkeypatch.setattr(Receiver, "receive", receive_first)
    monkeypatch.setattr(torch.accelerator, "is_available", lambda: True)
    monkeypatch.setattr(torch.accelerator, "current_accelerator", lambda: torch.device("cpu"))
    monkeypatch.setattr(torch.accelerator, "current_device_index", lambda: 0)
    monkeypatch.setattr(torch.accelerator, "set_device_index", lambda index: None)
    monkeypatch.setattr(torch.utils.data._utils.pin_memory, "pin_memory", lambda data, _: data)
    options = {"num_workers": 2, "pin_memory": True}
    found = [int(batch[0, 0]) for batch in fsdp.torch.DataLoader(Large(6, 10), 1, **options)]
    assert found == list(range(6))
    assert not list(fsdp.torch.DataLoader(Numbers(0), **options))


def test_without_a_broker_no_worker_is_started(broker, monkeypatch, tmp_path):
    monkeypatch.setenv("FSDP_SOCKET", str(tmp_path / "none"))
    script = """
        import fsdp, fsdp.torch, sys, torch
        try:
            iter(fsdp.torch.DataLoader([1, 2], num_workers=1))
        except fsdp.Error as error:
            print(type(error).__name__)
    """
    monkeypatch.setattr(broker, "path", os.environ["FSDP_SOCKET"])
    status, out, err = run(broker, script)
    assert status == 0 and out.strip() == "Disconnected", err


def test_an_unknown_version_of_torch_is_refused(broker, monkeypatch):
    monkeypatch.setattr(torch.utils.data._utils.worker, "_worker_loop", lambda a, b: 0)
    with pytest.raises(NotImplementedError, match="fsdp.torch.pack"):
        iter(fsdp.torch.DataLoader(Numbers(), num_workers=1))


# --- the end ------------------------------------------------------------------


def children():
    pid = os.getpid()
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return file.read().split()


def test_workers_end_with_the_iterator(broker):
    before = set(children())
    batches = iter(fsdp.torch.DataLoader(Numbers(), 2, num_workers=2))
    next(batches)
    assert len(set(children()) - before) == 2
    del batches
    assert set(children()) <= before


@pytest.mark.parametrize("options", ["", ", persistent_workers=True"])
def test_a_program_may_end_with_an_iterator(broker, options):
    script = f"""
        import fsdp.torch, torch
        loader = fsdp.torch.DataLoader([torch.ones(9)] * 99, num_workers=2{options})
        batches = iter(loader)
        kept = [next(batches) for _ in range(20)]
        print(len(kept))
    """
    status, out, err = run(broker, script)
    assert (status, out) == (0, "20\n"), err


def test_a_loader_can_be_used_in_a_thread(broker):
    found = []

    def load():
        found.extend(fsdp.torch.DataLoader(Numbers(), 4, num_workers=2))

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    assert len(found) == 6
