"""Tests that fsdp.safetensors does what the package safetensors does."""

import os
import subprocess

import numpy
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
try:
    import safetensors.numpy, safetensors.torch
    import safetensors as real
except ImportError:
    real = None
pytestmark = pytest.mark.skipif(real is None, reason="safetensors is not installed")

import fsdp
from conftest import holds
from fsdp import safetensors as ours
from fsdp._dtypes import LONG_NAMES
from fsdp._format import DTYPES_OF_FORMAT

DTYPES = sorted(DTYPES_OF_FORMAT.values())


def sample(dtype, shape=(2, 3)):
    kind = getattr(torch, LONG_NAMES[dtype])
    return torch.arange(6.0).reshape(shape).to(kind)


def weights():
    return {
        **{f"layer.{dtype}": sample(dtype) for dtype in DTYPES},
        "scalar": torch.tensor(7.5),
        "empty": torch.zeros(0, 3),
    }


def same(a, b):
    return a.dtype == b.dtype and a.shape == b.shape and (
        a.reshape(-1).view(torch.uint8).equal(b.reshape(-1).view(torch.uint8))
    )


def all_same(a, b):
    return a.keys() == b.keys() and all(same(a[name], b[name]) for name in a)


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "model.safetensors"
    real.torch.save_file(weights(), path, {"format": "pt", "step": "7"})
    return path


def test_files_of_the_package_can_be_read(c, path):
    assert all_same(ours.load_file(path, client=c), real.torch.load_file(path))


def test_the_package_can_read_files_written_by_fsdp(tmp_path):
    path = tmp_path / "ours.safetensors"
    ours.save_file(weights(), path, metadata={"format": "pt"})
    assert all_same(real.torch.load_file(path), weights())
    with real.safe_open(path, "pt") as file:
        assert file.metadata() == {"format": "pt"}


def test_nothing_is_written_that_could_not_be_read(tmp_path):
    path = tmp_path / "ours.safetensors"
    for metadata in {"step": 100}, {"step": None}, {100: "step"}:
        with pytest.raises(fsdp.Invalid, match="cannot write the metadata"):
            ours.save_file(weights(), path, metadata=metadata)
    with pytest.raises(fsdp.Invalid, match="give it another"):
        ours.save_file({"__metadata__": torch.ones(2)}, path)
    assert not path.exists()


def test_files_have_the_same_bytes_as_those_of_the_package(tmp_path, path):
    mine = tmp_path / "ours.safetensors"
    some = {f"w{i}": torch.arange(float(i + 1)) for i in range(12)}
    real.torch.save_file(some, path)
    ours.save_file(some, mine)
    assert mine.read_bytes() == path.read_bytes()


def test_safe_open_has_the_interface_of_the_package(c, path):
    public = {name for name in dir(real.safe_open) if not name.startswith("_")}
    # Other names of the newest package are for other frameworks and devices.
    assert public & set(dir(ours.safe_open)) >= {
        "get_slice", "get_tensor", "keys", "metadata", "offset_keys"
    }
    with real.safe_open(path, framework="pt", device="cpu") as theirs:
        with ours.safe_open(path, framework="pt", device="cpu", client=c) as file:
            assert sorted(file.keys()) == sorted(theirs.keys())
            assert file.offset_keys() == theirs.offset_keys()
            assert file.metadata() == theirs.metadata()
            for name in theirs.keys():
                assert same(file.get_tensor(name), theirs.get_tensor(name))
                a, b = file.get_slice(name), theirs.get_slice(name)
                assert a.get_shape() == b.get_shape()
                assert a.get_dtype() == b.get_dtype()


@pytest.mark.parametrize(
    "index", [slice(1, 2), (slice(None), slice(0, 2)), (slice(1, None), slice(1, 3)), ...], ids=str
)
def test_slices_equal_those_of_the_package(c, path, index):
    with real.safe_open(path, "pt") as theirs, ours.safe_open(path, "pt", client=c) as file:
        name = "layer.bf16"
        assert same(file.get_slice(name)[index], theirs.get_slice(name)[index])


def test_tensors_are_in_memory_of_the_broker(broker, c, path):
    mine = ours.load_file(path, prefix="m/", client=c)
    with fsdp.connect(broker.path) as other:
        ours.load_file("m/", client=other)
    assert mine["layer.f32"].data_ptr() == c["m/layer.f32"].torch().data_ptr()
    assert holds(c, "m/layer.f32") > 0
    assert c.entries("m/")[0]["bundle"] == "m/"


def test_tensors_of_the_broker_and_strided_ones_can_be_saved(c, tmp_path):
    path = tmp_path / "x.safetensors"
    matrix = torch.arange(6.0).reshape(2, 3)
    strided = c.put("a/x", matrix).view((3,), strides=(2,))
    ours.save_file(
        {"t": matrix.t(), "p": torch.nn.Parameter(matrix), "f": c["a/x"], "s": strided},
        path,
    )
    got = real.torch.load_file(path)
    assert got["t"].equal(matrix.t()) and got["p"].equal(matrix)
    assert got["f"].equal(matrix) and got["s"].equal(torch.tensor([0.0, 2, 4]))


def test_a_file_has_the_mode_of_the_umask(tmp_path):
    path = tmp_path / "x.safetensors"
    umask = os.umask(0o027)
    try:
        ours.save_file({"x": torch.ones(1)}, path)
    finally:
        os.umask(umask)
    assert path.stat().st_mode & 0o777 == 0o640


def test_a_file_that_is_replaced_keeps_its_mode_and_its_links(tmp_path):
    path, link = tmp_path / "x.safetensors", tmp_path / "newest.safetensors"
    ours.save_file({"a": torch.zeros(1)}, path)
    path.chmod(0o600)
    link.symlink_to(path.name)
    ours.save_file({"a": torch.ones(5)}, link)
    assert link.is_symlink() and path.stat().st_mode & 0o777 == 0o600
    assert real.torch.load_file(path)["a"].tolist() == [1] * 5


def test_what_is_no_file_is_written_and_not_replaced(tmp_path):
    fifo, path = tmp_path / "fifo", tmp_path / "x.safetensors"
    os.mkfifo(fifo)
    with subprocess.Popen(["cat", fifo], stdout=subprocess.PIPE) as reader:
        ours.save_file({"a": torch.ones(5)}, fifo)
        ours.save_file({"a": torch.ones(5)}, path)
        assert reader.stdout.read() == path.read_bytes()
    assert fifo.is_fifo()
    end, fd = os.pipe()
    ours.save_file({"a": torch.ones(5)}, f"/proc/self/fd/{fd}")
    assert os.read(end, 1000) == path.read_bytes()
    with open(os.memfd_create("nameless"), "rb") as nameless:
        ours.save_file({"a": torch.ones(5)}, f"/proc/self/fd/{nameless.fileno()}")
        assert nameless.read() == path.read_bytes()
    os.close(end)
    os.close(fd)
    for folder in (tmp_path, f"{tmp_path}/new/"):
        with pytest.raises(IsADirectoryError, match=str(tmp_path)):
            ours.save_file({"a": torch.ones(5)}, folder)
    for folder in ("new/.", "new/x/.."):
        with pytest.raises(FileNotFoundError, match=str(tmp_path)):
            ours.save_file({"a": torch.ones(5)}, f"{tmp_path}/{folder}")
    assert not (tmp_path / "new").exists()


def test_arrays_of_another_byte_order_are_saved_by_their_values(tmp_path):
    path = tmp_path / "x.safetensors"
    ours.save_file({"x": numpy.arange(3, dtype=">f4"), "z": numpy.array(7, ">i8")}, path)
    got = real.numpy.load_file(path)
    assert got["x"].tolist() == [0, 1, 2] and got["z"].tolist() == 7


def test_bench_attaches_a_model(broker, c, capsys):
    import json

    from fsdp.__main__ import main

    args = ["--socket", broker.path, "bench", "--model", "--quick"]
    assert main([*args, "--json"]) == 0
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    own, attach, *switches = rows
    assert own["name"] == "python_attach_own_bytes" and own["median"] < 64 << 20
    assert attach["n"] == 11 and 0 < attach["least"] <= attach["median"]
    for row in switches:
        assert row["name"].startswith("python_switch_") and row["n"] == 3
        assert 0 < row["least"] <= row["median"] and row["floor"] > 0
    assert len(switches) == 2
    assert main(args) == 0
    assert "python_attach_1000_weights" in capsys.readouterr().out
    assert c.names() == []


def test_fsdpctl_and_python_use_models_loaded_by_the_other(broker, c, path):
    from test_load import fsdpctl

    fsdpctl(broker, "load", "--once", str(path), "--prefix", "m/")
    assert all_same(fsdp.load_once(path, "m/", client=c).state_dict(), weights())
    fsdpctl(broker, "load", "--once", str(path), "--prefix", "m/")
    assert c.bundle("m/").version == 1
    with ours.safe_open("m/", "pt", client=c) as file:
        assert file.metadata() == {"format": "pt", "step": "7"}
