"""Tests checkpoints of torch.distributed.checkpoint in the broker's memory."""

import fcntl
import os
import pickle
import resource
import threading

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import torch.distributed.checkpoint
from torch.distributed.checkpoint.api import CheckpointException

import fsdp
import fsdp.dcp
from conftest import until
from crowd import Script

# Each rank runs this script. Its arguments begin with `store`, `world` and
# `rank`.
PRELUDE = """
import os, signal, sys, warnings
import torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
import fsdp, fsdp.dcp

store, world, rank = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + store, world_size=world, rank=rank)
mesh = init_device_mesh("cpu", (world,))

def state(step):
    rows = torch.arange(35.0).reshape(7, 5) + step
    return {
        "weight": distribute_tensor(rows, mesh, [Shard(0)]),
        "column": distribute_tensor(rows.bfloat16(), mesh, [Shard(1)]),
        "bias": distribute_tensor(rows[0].clone(), mesh, [Replicate()]),
        "empty": torch.zeros(0, 3),
        "step": step,
        "note": "as it was",
    }

def load(name):
    got = state(-1)
    dcp.load(got, storage_reader=fsdp.dcp.Reader(name))
    expected = state(got["step"])
    for key in ("weight", "column", "bias"):
        assert got[key].full_tensor().equal(expected[key].full_tensor()), key
    assert got["note"] == "as it was"
    return got["step"]

def end():
    dist.barrier()
    dist.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # gloo's threads sometimes abort a process that ends by itself
"""

SAVE = PRELUDE + """
for step in range(int(sys.argv[4]), int(sys.argv[5])):
    dcp.save(state(step), storage_writer=fsdp.dcp.Writer("run"))
end()
"""

LOAD = PRELUDE + """
print(load("run"))
end()
"""

# Kills either the last rank after it has written, or the coordinator before it
# finishes the checkpoint.
DIE = PRELUDE + """
class Dying(fsdp.dcp.Writer):
    def write_data(self, plan, planner):
        done = super().write_data(plan, planner)
        if sys.argv[4] == "rank" and rank == world - 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return done
    def finish(self, metadata, results):
        os.kill(os.getpid(), signal.SIGKILL)

dcp.save(state(9), storage_writer=Dying("run"))
"""


def run_ranks(broker, tmp_path, script, world, *more):
    """Returns the processes of all ranks."""
    store = tmp_path / f"store.{len(list(tmp_path.iterdir()))}"
    return [
        Script(broker, script, [store, world, rank, *more])
        for rank in range(world)
    ]


def succeed(ranks):
    said = [rank.communicate(timeout=120) for rank in ranks]
    for out, err, status in said:
        assert status == 0, err
    return {out for out, _, _ in said}


@pytest.fixture
def saved(broker, c, tmp_path):
    succeed(run_ranks(broker, tmp_path, SAVE, 2, 3, 4))


@pytest.mark.parametrize("world", [1, 2, 3])
def test_any_number_of_ranks_reads_a_checkpoint_of_two(broker, c, saved, tmp_path, world):
    assert succeed(run_ranks(broker, tmp_path, LOAD, world)) == {"3\n"}


def test_a_later_save_replaces_and_frees_the_earlier_one(broker, c, saved, tmp_path):
    names = len(c.names())
    succeed(run_ranks(broker, tmp_path, SAVE, 2, 4, 7))
    assert succeed(run_ranks(broker, tmp_path, LOAD, 2)) == {"6\n"}
    assert len(c.names()) == names


@pytest.mark.parametrize("who", ["rank", "coordinator"])
def test_a_save_that_was_not_finished_is_never_found(broker, c, saved, tmp_path, who):
    names = set(c.names())
    ranks = run_ranks(broker, tmp_path, DIE, 2, who)
    dead = ranks[1] if who == "rank" else ranks[0]
    assert dead.wait(120) == -9
    for rank in ranks:
        rank.kill()
        rank.communicate()
    # what the dead rank had written is there, but is no checkpoint
    assert set(c.names()) > names
    assert succeed(run_ranks(broker, tmp_path, LOAD, 3)) == {"3\n"}
    # The next save frees it.
    succeed(run_ranks(broker, tmp_path, SAVE, 2, 5, 6))
    assert len(c.names()) == len(names)


def test_a_checkpoint_outlives_the_broker(supervised, tmp_path):
    succeed(run_ranks(supervised, tmp_path, SAVE, 2, 3, 4))
    supervised.kill()
    assert succeed(run_ranks(supervised, tmp_path, LOAD, 1)) == {"3\n"}


def test_a_drained_checkpoint_is_a_checkpoint_of_torch(broker, c, saved, tmp_path):
    path = tmp_path / "disk"
    fsdp.dcp.drain("run", path, client=c)
    fsdp.dcp.remove("run", client=c)
    assert c.names() == []
    script = PRELUDE + f"""
class Reader(dcp.FileSystemReader):
    def __init__(self, name):
        super().__init__({str(path)!r})
fsdp.dcp.Reader = Reader
print(load("run"))
end()
"""
    assert succeed(run_ranks(broker, tmp_path, script, 3)) == {"3\n"}
    files = [p.name.split(".") for p in sorted(path.iterdir())]
    assert [(name[0], name[-1]) for name in files] == [
        ("", "metadata"), ("__0_0", "distcp"), ("__1_0", "distcp")
    ]


def test_invalid_names_are_refused(c):
    for name in ("", "a//b", "run/meta", "data.x"):
        with pytest.raises(fsdp.Invalid, match="not the name of a checkpoint"):
            fsdp.dcp.Writer(name, client=c)


def test_a_missing_checkpoint_is_named_as_the_caller_names_it(c):
    sentence = r"^there is no finished checkpoint 'none'; fsdpctl ls ckpt\.\d+/ lists"
    with pytest.raises(fsdp.NotFound, match=sentence):
        fsdp.dcp.Reader("none", client=c).read_metadata()
    with pytest.raises(fsdp.NotFound, match=sentence):
        fsdp.dcp.drain("none", "/nowhere", client=c)
    with pytest.raises(fsdp.NotFound, match=sentence):
        fsdp.dcp.remove("none", client=c)


# --- in this process, without others ------------------------------------------

# torch warns that torch.distributed is not used.
alone = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


def save(c, state, name="alone"):
    torch.distributed.checkpoint.save(
        state, storage_writer=fsdp.dcp.Writer(name, client=c), no_dist=True
    )


def load(c, state, name="alone"):
    torch.distributed.checkpoint.load(
        state, storage_reader=fsdp.dcp.Reader(name, client=c), no_dist=True
    )
    return state


# The elements of a parameter are copied by memcpy, those of views one by one.
@alone
def test_values_of_any_memory_layout_are_saved(c):
    rows = torch.arange(12.0).reshape(3, 4)
    state = {
        "parameter": torch.nn.Parameter(rows.clone()),
        "transposed": rows.t(),
        "strided": rows[:, ::2],
        "conjugate": torch.tensor([1 + 2j, 3 - 4j]).conj(),
        "negated": torch.tensor([1 + 2j, 3 - 4j]).conj().imag,
        "scalar": torch.tensor(7),
        "bool": torch.tensor([True, False, True]),
        "bf16": rows.bfloat16(),
        "none": torch.zeros(0, 3),
    }
    save(c, state)
    got = load(c, {name: torch.zeros_like(value) for name, value in state.items()})
    for name, value in state.items():
        assert torch.equal(got[name], value), name


@alone
def test_a_checkpoint_of_another_version_is_refused_with_the_remedy(c):
    base = f"ckpt.{os.getuid()}/alone/"
    c.put(f"{base}meta", pickle.dumps({"storage_data": {}}))
    for call in save, load:
        with pytest.raises(CheckpointException, match=f"fsdpctl rm --prefix {base}"):
            call(c, {"x": torch.ones(3)})
    with pytest.raises(fsdp.Invalid, match="another version"):
        fsdp.dcp.Reader("alone", client=c).read_metadata()


@alone
# torch warns that quantized tensors are deprecated
@pytest.mark.filterwarnings("ignore")
def test_a_tensor_with_more_than_its_elements_is_refused(c):
    quantized = torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8)
    for tensor, way in (torch.eye(3).to_sparse(), "to_dense"), (quantized, "int_repr"):
        with pytest.raises(CheckpointException, match=f"cannot save .*; give {way}"):
            torch.distributed.checkpoint.save(
                {"x": tensor}, storage_writer=fsdp.dcp.Writer("alone")
            )
    assert c.names() == []


@alone
def test_a_save_reuses_the_memory_of_the_last_but_one(c):
    state = {"weight": torch.zeros(6 << 20, dtype=torch.uint8)}
    for step in range(6):
        state["weight"].fill_(step)
        state["note"] = "x" * step * 100  # the size of this entry changes
        save(c, state)
        if step == 1:
            chunks = c.status()["chunk_bytes"]
    assert c.status()["chunk_bytes"] == chunks
    assert load(c, {"weight": torch.zeros(6 << 20, dtype=torch.uint8)})["weight"][-1] == 5
    (slab,) = c.names(f"ckpt.{os.getuid()}/alone/data.")
    assert c.who(slab) == []


@alone
def test_a_reader_keeps_its_version_during_later_saves(c):
    state = {"weight": torch.zeros(1 << 20, dtype=torch.uint8)}
    save(c, state)
    reader = fsdp.dcp.Reader("alone", client=c)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    ((index, _),) = metadata.storage_data.items()
    first = reader.tensor(index).torch()
    for step in range(1, 4):
        state["weight"].fill_(step)
        save(c, state)
    assert not first.any()


@alone
def test_names_with_a_common_prefix_are_separate_checkpoints(c):
    for name in ("a", "a/b", "ab"):
        save(c, {"x": torch.tensor(len(name))}, name)
    fsdp.dcp.remove("a", client=c)
    assert [int(load(c, {"x": torch.tensor(0)}, n)["x"]) for n in ("a/b", "ab")] == [3, 2]


@alone
def test_a_drain_keeps_its_version_during_later_saves(c, tmp_path, monkeypatch):
    state = {"x": torch.zeros(1000), "note": "first"}
    hold = fsdp.dcp.Reader._hold

    def hold_late(reader, name):
        monkeypatch.undo()
        state.update(x=torch.ones(1000), note="second")
        save(c, state)
        return hold(reader, name)

    def write_late(*arguments):
        monkeypatch.undo()
        save(c, state)
        return fsdp.dcp._write_slab(*arguments)

    for holder, name, function in (
        (fsdp.dcp.Reader, "_hold", hold_late),
        (fsdp.dcp, "_write_slab", write_late),
    ):
        save(c, state)
        monkeypatch.setattr(holder, name, function)
        fsdp.dcp.drain("alone", tmp_path, client=c)
        assert load_file(tmp_path) == {"x": 1.0, "note": "second"}


def load_file(path):
    """Return values of a checkpoint on disk."""
    state = {"x": torch.full((1000,), 7.0), "note": ""}
    reader = torch.distributed.checkpoint.FileSystemReader(path)
    torch.distributed.checkpoint.load(state, storage_reader=reader, no_dist=True)
    assert (state["x"] == state["x"][0]).all()
    return {"x": float(state["x"][0]), "note": state["note"]}


def fail_once(monkeypatch, module, name, n):
    """Lets the nth call of a function fail."""
    function, left = getattr(module, name), [n]

    def call(*arguments):
        left[0] -= 1
        if left[0] == 0:
            raise OSError("the disk is full")
        return function(*arguments)

    monkeypatch.setattr(module, name, call)


# fsync() is called for a file, the metadata and the directory.
@alone
@pytest.mark.parametrize(
    "module, name, n",
    [(os, "fsync", 1), (pickle, "dump", 1), (os, "fsync", 2), (os, "fsync", 3), (os, "replace", 1)],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_drain_that_fails_leaves_the_earlier_checkpoint(
    c, tmp_path, monkeypatch, module, name, n
):
    save(c, {"x": torch.zeros(1000), "note": "first"})
    fsdp.dcp.drain("alone", tmp_path, client=c)
    files = sorted(tmp_path.iterdir())
    save(c, {"x": torch.ones(1000), "note": "second"})
    fail_once(monkeypatch, module, name, n)
    with pytest.raises(OSError, match="the disk is full"):
        fsdp.dcp.drain("alone", tmp_path, client=c)
    monkeypatch.undo()
    assert load_file(tmp_path) == {"x": 0.0, "note": "first"}
    assert sorted(tmp_path.iterdir()) == files
    fsdp.dcp.drain("alone", tmp_path, client=c)
    assert load_file(tmp_path) == {"x": 1.0, "note": "second"}
    assert len(list(tmp_path.glob("*.distcp"))) == 1


@alone
def test_an_interrupt_after_the_last_step_leaves_the_new_checkpoint(c, tmp_path, monkeypatch):
    save(c, {"x": torch.zeros(1000), "note": "first"})
    fsdp.dcp.drain("alone", tmp_path, client=c)
    save(c, {"x": torch.ones(1000), "note": "second"})
    replace = os.replace

    def interrupt(*arguments):
        replace(*arguments)
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "replace", interrupt)
    with pytest.raises(KeyboardInterrupt):
        fsdp.dcp.drain("alone", tmp_path, client=c)
    assert load_file(tmp_path) == {"x": 1.0, "note": "second"}


@alone
def test_a_drain_of_the_same_save_that_fails_leaves_the_earlier_one(c, tmp_path):
    large = torch.zeros(1 << 20)
    save(c, {"x": torch.zeros(1000), "note": "first", "large": large})
    fsdp.dcp.drain("alone", tmp_path, client=c)
    files = sorted(tmp_path.iterdir())

    # Files cannot grow beyond this, as on a full disk.
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 20, limits[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            fsdp.dcp.drain("alone", tmp_path, client=c)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert load_file(tmp_path) == {"x": 0.0, "note": "first"}
    # What it wrote would keep the disk full.
    assert sorted(tmp_path.iterdir()) == files


@alone
def test_a_drain_in_a_handler_names_its_own_error(c, tmp_path, monkeypatch):
    def fail(value, file):
        raise RuntimeError("no such format")

    save(c, {"x": torch.zeros(1000), "note": "first"})
    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(RuntimeError, match="no such format"):
        try:
            raise ValueError("the training fails")
        except ValueError:
            fsdp.dcp.drain("alone", tmp_path, client=c)


def is_waited_for(path):
    """Returns whether a process waits for the lock of a file."""
    inode = f":{os.stat(path).st_ino} "
    with open("/proc/locks") as file:
        return any(" -> " in line and inode in line for line in file)


@alone
def test_a_drain_waits_for_another_and_takes_the_newest_save(c, tmp_path, monkeypatch):
    save(c, {"x": torch.zeros(1000), "note": "first"})
    write_slab, others = fsdp.dcp._write_slab, []

    def drain():
        fsdp.dcp.drain("alone", tmp_path, client=c)

    def write_late(*arguments):
        monkeypatch.undo()
        save(c, {"x": torch.ones(1000), "note": "second"})
        others.append(threading.Thread(target=drain))
        others[0].start()
        until(lambda: is_waited_for(tmp_path), "the second drain waits")
        return write_slab(*arguments)

    monkeypatch.setattr(fsdp.dcp, "_write_slab", write_late)
    drain()
    others[0].join()
    assert load_file(tmp_path) == {"x": 1.0, "note": "second"}
    assert len(list(tmp_path.glob("*.distcp"))) == 1


def test_a_child_that_was_forked_meanwhile_holds_no_lock(tmp_path):
    with fsdp.dcp._only_drain(tmp_path) as directory:
        of_child = os.dup(directory)  # shares the lock, as after fork()
    directory = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
    os.close(directory)
    os.close(of_child)
