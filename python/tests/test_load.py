"""Tests that one of many processes loads a model, and that all of them attach
it.
"""

import json
import os
import random
import re
import signal
import struct
import subprocess
import sys
import types

import numpy as np
import pytest

import fsdp
from conftest import BUILD, start, until
from fsdp.safetensors import load_file, name_of_file, name_of_files, safe_open, save_file

N, SIZE = 24, 1 << 20


@pytest.fixture
def model(tmp_path):
    """A file that takes a while to load."""
    path = tmp_path / "model.safetensors"
    weights = {f"w{i}": np.full(SIZE, i, "u1") for i in range(N)}
    save_file(weights, path, {"format": "np"})
    return path


def is_whole(bundle):
    return len(bundle) == N and all((bundle[f"w{i}"].numpy() == i).all() for i in range(N))


def test_the_first_process_loads_and_others_attach(broker, c, model):
    first = fsdp.load_once(model, "m/", client=c)
    assert is_whole(first) and first.metadata == {"format": "np"}
    model.unlink()  # The file must not be read again.
    with fsdp.connect(broker.path) as other:
        second = fsdp.load_once(model, "m/", client=other)
        assert second.version == 1 and second["w1"]._id == first["w1"]._id


def fsdpctl(broker, *arguments):
    subprocess.run(
        [BUILD / "fsdpctl", "--socket", broker.path, *arguments], check=True, capture_output=True
    )


def test_fsdpctl_waits_for_python_and_finds_the_loaded_model(broker, c, model):
    stage = c.stage("m/", once=True)
    load = subprocess.Popen(
        [BUILD / "fsdpctl", "--socket", broker.path, "load", "--once", model, "--prefix", "m/"],
        stdout=subprocess.PIPE,
        text=True,
    )
    until(lambda: c.status()["waiters"] > 0, "fsdpctl waits")
    stage.put("w", b"abc")
    stage.commit()
    assert load.communicate(timeout=60)[0] == "m/ version 1 is there: 1 tensor, 3 B\n"
    assert load.returncode == 0


def test_a_name_that_overlaps_is_refused(c, model):
    with c.stage("m/below/") as stage:
        stage.put("w", b"x")
    with pytest.raises(fsdp.Exists, match="would overlap"):
        fsdp.load_once(model, "m/", client=c)


REPLICA = """
import fsdp, sys
sys.stdin.readline()
m = fsdp.load_once(sys.argv[1], "m/")
assert all((m[f"w{i}"].numpy() == i).all() for i in range(len(m))), "torn"
print(m.version, m["w0"]._id, len(m), flush=True)
sys.stdin.readline()
assert all((m[f"w{i}"].numpy() == i).all() for i in range(len(m))), "gone"
"""


def replicas(broker, model, n):
    """Starts n processes, each of which loads the model when it reads a
    line."""
    return [start(broker, REPLICA, arguments=[str(model)]) for _ in range(n)]


def test_eight_replicas_load_once(broker, c, model):
    before = c.status()["bytes_live"]
    processes = replicas(broker, model, 8)
    for process in processes:
        process.stdin.write("go\n")
        process.stdin.flush()
    said = {process.stdout.readline() for process in processes}
    assert len(said) == 1 and said.pop().endswith(f" {N}\n")
    assert c.status()["bytes_live"] - before < 2 * N * SIZE
    # When the first one exits, the others must keep their tensors.
    for process in processes:
        out, err = process.communicate("end\n", timeout=120)
        assert (process.returncode, out, err) == (0, "", "")
    assert is_whole(c.bundle("m/"))


def test_another_loader_takes_over_from_one_killed_at_any_time(broker, c, model):
    """Kills the loading process at a random point, until only one process is
    left."""
    chance = random.Random(15)
    for _ in range(4):
        live = c.status()["bytes_live"]
        processes = replicas(broker, model, 3)
        for process in processes:
            process.stdin.write("go\n")
            process.stdin.flush()
        for process in processes[:2]:
            some = chance.randrange(1, N * SIZE)
            until(
                lambda: c.status()["bytes_live"] - live >= some or "m/w0" in c,
                "a replica loads",
            )
            process.send_signal(signal.SIGKILL)
            process.communicate()
        out, err = processes[2].communicate("end\n", timeout=120)
        assert (processes[2].returncode, err) == (0, "")
        assert out.endswith(f" {N}\n")
        assert is_whole(c.bundle("m/"))
        c.remove("m/")
        until(lambda: c.status()["bytes_live"] == live, "nothing is left behind")


def test_processes_that_wait_are_limited_by_the_timeout(broker, c, model):
    stage = c.stage("m/", once=True)
    with fsdp.connect(broker.path) as other:
        with pytest.raises(fsdp.Timeout, match="not loaded within"):
            fsdp.load_once(model, "m/", client=other, timeout=0.01)
        with pytest.raises(fsdp.Error, match="another process is loading"):
            other.stage("m/", once=True, timeout=0)
        stage.abort()
        assert is_whole(fsdp.load_once(model, "m/", client=other, timeout=0))


def test_after_a_loader_that_fails_the_next_one_loads(c, model, tmp_path):
    with pytest.raises(FileNotFoundError):
        fsdp.load_once(tmp_path / "none.safetensors", "m/", client=c)
    with open(tmp_path / "cut.safetensors", "wb") as file:
        file.write(model.read_bytes()[:-1])
    with pytest.raises(fsdp.Invalid, match="bytes of data"):
        fsdp.load_once(tmp_path / "cut.safetensors", "m/", client=c)
    assert is_whole(fsdp.load_once(model, "m/", client=c))


def test_a_model_may_have_a_time_to_live(c, model):
    first = fsdp.load_once(model, "m/", client=c, ttl=0.5)
    until(lambda: c.status()["slots_limbo"] >= N, "its name ends")
    second = fsdp.load_once(model, "m/", client=c)
    assert is_whole(first) and is_whole(second) and second["w1"]._id != first["w1"]._id


def test_an_index_loads_all_its_files(c, tmp_path):
    save_file({"a": np.arange(3)}, tmp_path / "1.safetensors")
    save_file({"b": np.arange(4)}, tmp_path / "2.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {"a": "1.safetensors", "b": "2.safetensors"}}))
    bundle = fsdp.load_once(index, "m/", client=c)
    assert bundle["a"].numpy().tolist() == [0, 1, 2] and len(bundle) == 2
    c.remove("m/")
    both = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    assert list(fsdp.load_once(both, "m/", client=c)) == ["a", "b"]
    index.write_text(json.dumps({"weight_map": {"a": "../1.safetensors"}}))
    with pytest.raises(fsdp.Invalid, match="other directories"):
        fsdp.load_once(index, "other/", client=c)
    for wrong in ('{"weight_map": {"a": 1}}', '{"weight_map": {"a": 1, "b": "x"}}', "[" * 100000):
        index.write_text(wrong)
        with pytest.raises(fsdp.Invalid, match="not an index"):
            fsdp.load_once(index, "other/", client=c)


def both_load(broker, c, files):
    """Loads files by load_once() and by fsdpctl. Returns what each one says if
    it refuses, or else the names of the tensors."""
    try:
        said = list(fsdp.load_once(files, "m/", client=c))
    except (fsdp.Error, OSError) as error:
        said = str(error)
    paths = files if isinstance(files, list) else [files]
    try:
        fsdpctl(broker, "load", "--once", *paths, "--prefix", "n/")
        return said, list(c.bundle("n/"))
    except subprocess.CalledProcessError as error:
        return said, error.stderr.decode()


@pytest.mark.parametrize(
    "weight_map, why",
    [
        ('{"a": "1.safetensors", "b": "1.safetensors"}', "'b' is in 1.*, but it is not there"),
        ('{"a": "1.safetensors", "c": "2.safetensors"}', "'c' is in 2.*, but it is not there"),
        ('{"a": "1.safetensors", "b": "3.safetensors"}', "3.safetensors"),
        ('{"a": "1.safetensors", "b": "copy.safetensors"}', "'a' is in two files, .*1.*copy"),
        ('{"a": "1.safetensors", "a": "1.safetensors"}', "index"),
        ("[]", "not .* index"),
        (r'{"a": "1\u0000.safetensors"}', "no file has such a name|index.json"),
        (r'{"a": "\ud800.safetensors"}', "no file has such a name|index.json"),
        ("{}", 'cannot read .*: its "weight_map" names no file; download'),
    ],
)
def test_load_once_and_fsdpctl_refuse_the_same_indexes(broker, c, tmp_path, weight_map, why):
    for name, tensors in ("1", "a"), ("2", "x"), ("copy", "ab"):
        save_file({t: np.arange(3) for t in tensors}, tmp_path / f"{name}.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text(f'{{"weight_map": {weight_map}}}')
    for said in both_load(broker, c, index):
        assert isinstance(said, str) and re.search(why, said)
    assert c.names() == []


def test_load_once_and_fsdpctl_refuse_a_tensor_in_two_files(broker, c, tmp_path):
    files = [tmp_path / "1.safetensors", tmp_path / "2.safetensors"]
    for file in files:
        save_file({"a": np.arange(3)}, file)
    for said in both_load(broker, c, files):
        assert f"tensor 'a' is in two files, {files[0]} and {files[1]}; leave one" in said


def test_load_once_and_fsdpctl_load_tensors_that_the_index_lacks(broker, c, tmp_path):
    save_file({"a": np.arange(3), "b": np.arange(4)}, tmp_path / "1.safetensors")
    index = tmp_path / "model.safetensors.index.json"
    index.write_text('{"weight_map": {"a": "1.safetensors"}}')
    assert both_load(broker, c, index) == (["a", "b"], ["a", "b"])


def entry(dtype="U8", shape=(1,), offsets=(0, 1)):
    return {"dtype": dtype, "shape": list(shape), "data_offsets": list(offsets)}


@pytest.mark.parametrize(
    "header, data, why",
    [
        (b"{", b"", "not JSON"),
        (b"[" * 100000, b"", "not JSON"),
        (b"[]", b"", "not a JSON object"),
        ({"a": 7}, b"", "describes"),
        ({"a": entry(dtype="U9")}, b"x", "describes"),
        ({"a": entry(shape=(-1,))}, b"x", "describes"),
        ({"a": entry(shape=(True,))}, b"x", "describes"),
        ({"a": entry(shape=(2,))}, b"x", "does not fit its shape"),
        ({"a": entry(offsets=(1, 2))}, b"xy", "hole"),
        ({"a": entry(), "b": entry()}, b"x", "overlap"),
        ({"a": entry()}, b"xy", "2 bytes of data"),
        ({"a": entry(), "__metadata__": {"k": 1}}, b"x", "object of strings"),
        (b'{"a":{},"a":{}}', b"", "twice"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_an_invalid_file_is_refused(c, tmp_path, header, data, why):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path = tmp_path / "x.safetensors"
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    with pytest.raises(fsdp.Invalid, match=why):
        fsdp.load_once(path, "m/", client=c)


@pytest.mark.parametrize("data", [b"", b"1234567", struct.pack("<Q", 100) + b"{}"])
def test_a_file_other_than_safetensors_is_refused(c, tmp_path, data):
    path = tmp_path / "x.safetensors"
    path.write_bytes(data)
    with pytest.raises(fsdp.Invalid, match="not a safetensors file"):
        fsdp.load_once(path, "m/", client=c)


def test_a_directory_is_refused_with_the_remedy(c, tmp_path):
    with pytest.raises(fsdp.Invalid, match=f"{tmp_path}: it is a directory; give"):
        fsdp.load_once(tmp_path, "m/", client=c)
    with pytest.raises(fsdp.Invalid, match=f"{tmp_path}: it is a directory; give"):
        load_file(tmp_path, client=c)


def test_a_fifo_is_refused_and_not_waited_for(c, tmp_path):
    os.mkfifo(tmp_path / "x.safetensors")
    with pytest.raises(fsdp.Invalid, match="not a regular file; copy its bytes"):
        fsdp.load_once(tmp_path / "x.safetensors", "m/", client=c)


def test_a_model_without_tensors_is_loaded(c, tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({}, path)
    assert load_file(path, client=c) == {}
    bundle = fsdp.load_once(path, "m/", client=c)
    assert len(bundle) == 0 and bundle.metadata == {}


def test_no_files_are_no_model(c):
    with pytest.raises(fsdp.Invalid, match="list without files"):
        fsdp.load_once([], "m/", client=c)
    assert c.names("m/") == []


# --- progress -----------------------------------------------------------------


class Bar:
    """Has the interface of tqdm's bar."""

    made = []

    def __init__(self, desc, total, unit, unit_scale):
        self.desc, self.total, self.seen, self.is_open = desc, total, [], True
        self.made.append(self)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.is_open = False

    def update(self, n):
        assert self.is_open
        self.seen.append(n)


def test_the_process_that_reads_a_file_can_show_a_progress_bar(c, model, monkeypatch):
    tqdm = types.ModuleType("tqdm.auto")
    tqdm.tqdm = Bar
    monkeypatch.setitem(sys.modules, "tqdm", types.ModuleType("tqdm"))
    monkeypatch.setitem(sys.modules, "tqdm.auto", tqdm)
    monkeypatch.setattr(Bar, "made", [])
    assert is_whole(fsdp.load_once(model, "m/", client=c, progress=True))
    (bar,) = Bar.made
    assert (bar.desc, bar.total, bar.is_open) == ("m/", N * SIZE, False)
    assert len(bar.seen) >= N and sum(bar.seen) == N * SIZE
    load_file(model, prefix="m/", client=c, framework="np", progress=True)
    assert len(Bar.made) == 1  # the second call found the model in the broker
    load_file(model, prefix="n/", client=c, framework="np", progress=True)
    load_file(model, prefix="o/", client=c, framework="np")
    assert [bar.desc for bar in Bar.made] == ["m/", "n/"]


def test_without_tqdm_a_model_is_still_loaded(c, model, monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "tqdm", None)
    monkeypatch.setitem(sys.modules, "tqdm.auto", None)
    assert is_whole(fsdp.load_once(model, "m/", client=c, progress=True))
    (record,) = caplog.records
    assert record.name == "fsdp" and "tqdm is not installed" in record.message


# --- safe_open and load_file without torch ------------------------------------


def test_a_file_is_read_by_numpy(c, model):
    with safe_open(model, "np", client=c) as file:
        assert file.metadata() == {"format": "np"}
        assert file.keys() == sorted(f"w{i}" for i in range(N))
        assert file.offset_keys() == list(file.bundle)
        part = file.get_slice("w3")
        assert (part.get_shape(), part.get_dtype()) == ([SIZE], "U8")
        assert part[5:7].tolist() == [3, 3]
        assert not file.get_tensor("w3").flags.writeable
        with pytest.raises(KeyError, match="no tensor"):
            file.get_tensor("w99")
    with pytest.raises(fsdp.Invalid, match="closed"):
        file.keys()
    with pytest.raises(fsdp.Invalid, match="framework"):
        safe_open(model, "tf", client=c)


def test_a_bundle_can_be_opened_by_name(c, model):
    fsdp.load_once(model, "m/", client=c)
    with safe_open("m/", "np", client=c) as file:
        assert file.get_tensor("w7")[0] == 7
    with pytest.raises(fsdp.NotFound):
        safe_open("none/", "np", client=c)


def test_another_file_of_the_same_path_is_another_bundle(c, model):
    first = name_of_file(model)
    assert load_file(model, client=c, framework="np")["w1"][0] == 1
    assert c.bundle(first).name == first
    save_file({"w1": np.full(3, 9, "u1")}, model)
    assert name_of_file(model) != first
    assert load_file(model, client=c, framework="np")["w1"].tolist() == [9, 9, 9]


def test_the_bundle_of_several_files_changes_with_each_file(model, tmp_path):
    files = [model, tmp_path / "2.safetensors"]
    save_file({"a": np.arange(3)}, files[1])
    first = name_of_files(files)
    assert first.split("/")[1].startswith(f"{tmp_path.name[:64]}.")
    assert first == name_of_files(files) != name_of_files(files[:1])
    save_file({"a": np.arange(4)}, files[1])
    assert name_of_files(files) != first


def test_a_file_is_written_completely_or_not_at_all(tmp_path):
    path = tmp_path / "x.safetensors"
    save_file({"a": np.arange(3)}, path)
    before = path.read_bytes()
    with pytest.raises(fsdp.Invalid, match="no c128"):
        save_file({"a": np.zeros(2, "c16")}, path)
    with pytest.raises(FileNotFoundError):
        save_file({"a": np.zeros(2)}, tmp_path / "none" / "x")
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.safetensors"]
