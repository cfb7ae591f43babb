import collections
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys

import numpy as np
import pytest

import fsdp
import fsdp.safetensors
from conftest import until
from fsdp import _status


def call(*args):
    done = subprocess.run(
        [sys.executable, "-m", "fsdp", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout, done.stderr


def test_arrays_can_be_put_and_saved_as_files(c, tmp_path):
    np.save(tmp_path / "in.npy", np.arange(6).reshape(2, 3))
    assert call("put", "a/x", tmp_path / "in.npy") == (0, "a/x v1: 48 B\n", "")
    assert call("get", "a/x") == (0, "[[0 1 2]\n [3 4 5]]\n", "")
    assert call("get", "a/x", "-o", tmp_path / "out.npy") == (0, "", "")
    assert (np.load(tmp_path / "out.npy") == np.arange(6).reshape(2, 3)).all()
    assert call("rm", "a/x") == (0, "", "")
    assert c.names() == []


def test_models_can_be_loaded_and_saved(c, tmp_path):
    weights = {"w": np.arange(3, dtype="f4"), "b": np.ones(2)}
    file, copy = tmp_path / "m.safetensors", tmp_path / "copy.safetensors"
    fsdp.safetensors.save_file(weights, file, {"step": "7"})
    for _ in range(2):  # the second call finds the model in the broker
        said = call("load", file, "--prefix", "m/", "--timeout", "forever")
        assert said == (0, "m/ v1: 2 tensors, 28 B\n", "")
    printed = "b  f64  [2]\n[1. 1.]\nw  f32  [3]\n[0. 1. 2.]\n"
    assert call("get", "m/") == (0, printed, "")
    assert call("get", "m/", "-o", copy) == (0, "", "")
    with fsdp.safetensors.safe_open(copy, "np", client=c) as got:
        assert got.metadata() == {"step": "7"}
        assert got.get_tensor("w").tolist() == [0, 1, 2]


def test_lists_are_tables(c, tmp_path):
    c.put("a/x", np.arange(6, dtype="i4").reshape(2, 3))
    kept = c.put("a/long", bytes(3 << 20))
    code, out, err = call("ls", "a/")
    head, *rows, empty, total = out.splitlines()
    assert (code, err, empty) == (0, "", "")
    assert head.split() == "NAME VERSION DTYPE SHAPE BYTES HOLDERS AGE DEVICE".split()
    assert head.index("DTYPE") == rows[0].index("u8") == rows[1].index("i32")
    assert [row.split()[:7] for row in rows] == [
        ["a/long", "1", "u8", "[3145728]", "3.0", "MiB", "1"],
        ["a/x", "1", "i32", "[2,", "3]", "24", "B"],
    ]
    assert total == "total: 2 tensors, 3.0 MiB"
    del kept


def test_lists_can_be_json(c):
    c.put("a/x", b"abc")
    (line,) = call("ls", "--json")[1].splitlines()
    assert json.loads(line)["name"] == "a/x"
    status = json.loads(call("status", "--json")[1])
    assert status["sessions"] >= 1 and isinstance(status["note"], str)


def _without_times(text):
    return re.sub(r"up \S+ \S+|\S+ (us|ms|s)$", "T", text, flags=re.MULTILINE)


def test_status_is_printed_as_by_fsdpctl(broker, c):
    kept = c.put("a/x", bytes(3 << 20))
    theirs = subprocess.run(
        [os.environ["FSDPCTL"], "status"], capture_output=True, text=True, check=True
    )
    code, out, err = call("status")
    assert (code, err) == (0, "")
    assert _without_times(out) == _without_times(theirs.stdout)
    assert "3.0 MiB used of" in out and "warning: " in out
    del kept


STATUS = collections.defaultdict(int, supervised=1, memory_max=100, note="")


@pytest.mark.parametrize(
    "counters, warnings",
    [
        ({}, []),
        ({"supervised": 0}, ["is not supervised: a restart loses all tensors"]),
        ({"draining": 1}, ["is being drained"]),
        ({"bytes_live": 89}, []),
        ({"bytes_live": 90}, ["90% of the host memory is used"]),
        ({"slots_limbo": 999}, []),
        ({"slots_limbo": 1000, "tainted": 2}, ["1000 tensors are in", "2 tensors were"]),
        ({"jobs_failed": 1, "dropped_peers": 3}, ["1 jobs of", "3 connections were"]),
        ({"note": "one\n\ntwo\x1b[31m"}, ["warning: one", "warning: two?[31m"]),
    ],
)
def test_each_warning_is_a_line(counters, warnings):
    lines = [line for line in _status.lines({**STATUS, **counters}) if "warning" in line]
    assert len(lines) == len(warnings)
    assert all(word in line for word, line in zip(warnings, lines))


def test_status_shows_devices_and_communicators():
    counters = {
        "GPU-1_memory_max": 4 << 30,
        "GPU-1_chunk_bytes": 1 << 30,
        "device_bytes_live": 1 << 20,
        "comms": 1,
        "groups": 2,
        "uptime_ms": 130 * 60_000,
        "loop_longest_ns": 2_500_000_000,
    }
    lines = list(_status.lines({**STATUS, **counters}))
    for line in (
        "device        1.0 GiB in chunks of 4.0 GiB on GPU-1",
        "              1.0 MiB used on all devices",
        "communicators 1, of which 0 running; 2 groups, 0 gathers in flight",
        "broker        pid 0, up 2 h, supervised",
        "loop          longest iteration 2.50 s",
    ):
        assert line in lines


def test_errors_are_one_line(c, tmp_path):
    missing = 'fsdp: there is no tensor "a/none" yet; give a timeout to wait for it\n'
    assert call("get", "a/none") == (1, "", missing)
    c.put("a/x", b"x")
    (tmp_path / "text").write_text("not an array")
    for words, cause in (
        (["put", "a/y", tmp_path / "text"], "text as an .npy file"),
        (["put", "a/y", tmp_path / "none"], "none: No such file"),
        (["get", "a/x", "-o", tmp_path / "none" / "x"], "x: No such file"),
        (["load", tmp_path / "none", "--prefix", "m/"], "No such file"),
        (["load", tmp_path / "text", "--prefix", "m/"], "text"),
        (["get", "none/"], "none/"),
        (["rm", "a/none"], "a/none"),
        (["--socket", tmp_path / "none", "ls"], "none"),
    ):
        status, out, err = call(*words)
        assert (status, out) == (1, ""), words
        assert err.startswith("fsdp: ") and err.count("\n") == 1, err
        assert cause in err and "Errno" not in err


def test_invalid_arguments_end_with_status_2(c):
    wrong = [["no"], ["get"], ["get", "x", "--timeout", "-1"], ["load", "x"]]
    for words in [], *wrong, ["bench", "--second", "x"]:
        status, out, err = call(*words)
        assert (status, out, err.count("\n")) == (2, "", 1)


def test_an_output_that_cannot_be_written_is_an_error(c):
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "fsdp", "status"],
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert done.returncode == 1
    assert done.stderr == "fsdp: cannot use standard output: No space left on device\n"


def test_ctrl_c_ends_the_program_by_its_signal(c):
    process = subprocess.Popen(
        [sys.executable, "-m", "fsdp", "get", "a/never", "--timeout", "forever"],
        stderr=subprocess.PIPE,
    )
    until(lambda: c.status()["waiters"] == 1, "it waits")
    process.send_signal(signal.SIGINT)
    assert process.communicate()[1] == b""
    assert process.returncode == -signal.SIGINT


def test_bench_prints_a_line_for_each_row(c):
    status, out, err = call("bench", "--json")
    assert (status, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    packages = [name for name in ("numpy", "torch") if importlib.util.find_spec(name)]
    assert [row["name"] for row in rows] == [
        *[f"python_get_{name}" for name in packages],
        "python_hold_release",
        "python_get_by_name",
        "python_memoryview",
        "python_channel_64KiB",
        "python_channel_1MiB",
        "python_channel_114",
        "python_interrupt",
    ]
    assert {row["unit"] for row in rows[:-1]} == {"ns"} and rows[-1]["unit"] == "ms"
    assert all(row["median"] >= row["least"] for row in rows)
    assert fsdp.default().names() == []


def test_bench_of_channels_measures_two_processes(c):
    status, out, err = call("bench", "--channel", "--quick", "--json")
    assert (status, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["name"] for row in rows] == ["python_channel_stream", "python_channel_turn"]
    assert all(set(row["beside"]) == {"pipe", "SimpleQueue", "Queue"} for row in rows)


def test_the_error_for_an_unknown_option_refers_to_the_help():
    for words in [], ["ls"]:
        code, out, said = call(*words, "--nothing")
        assert (code, out) == (2, "") and said.endswith("--help\n")


def test_the_error_of_bench_names_a_missing_package(c):
    script = """
import sys
sys.modules["torch"] = None
from fsdp.__main__ import main
sys.exit(main(["bench", sys.argv[1]]))
"""
    for kind in "--loader", "--model":
        done = subprocess.run(
            [sys.executable, "-c", script, kind],
            capture_output=True,
            text=True,
            timeout=600,
        )
        expected = f"fsdp: bench {kind} needs the package torch\n"
        assert (done.returncode, done.stderr) == (1, expected)
