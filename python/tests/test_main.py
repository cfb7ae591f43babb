import json
import subprocess
import sys

import numpy as np

import fsdp


def call(*args):
    done = subprocess.run(
        [sys.executable, "-m", "fsdp", *map(str, args)],
        capture_output=True,
        text=True,
        timeout=600,
    )
    return done.returncode, done.stdout, done.stderr


def test_files_go_in_and_out(c, tmp_path):
    np.save(tmp_path / "in.npy", np.arange(6).reshape(2, 3))
    assert call("put", "a/x", tmp_path / "in.npy") == (0, "a/x v1: 48 bytes\n", "")
    assert call("ls", "a/") == (0, "a/x  v1  i64  2x3  48 bytes\n", "")
    assert call("get", "a/x") == (0, "[[0 1 2]\n [3 4 5]]\n", "")
    assert call("get", "a/x", "-o", tmp_path / "out.npy")[0] == 0
    assert (np.load(tmp_path / "out.npy") == np.arange(6).reshape(2, 3)).all()


def test_lists_can_be_json(c):
    c.put("a/x", b"abc")
    (line,) = call("ls", "--json")[1].splitlines()
    assert json.loads(line)["name"] == "a/x"
    assert json.loads(call("status", "--json")[1])["sessions"] >= 1
    assert "sessions" in call("status")[1]


def test_errors_are_one_line(c, tmp_path):
    missing = 'fsdp: there is no tensor "a/none" yet; a timeout waits for it\n'
    assert call("get", "a/none") == (1, "", missing)
    (tmp_path / "text.npy").write_text("not an array")
    status, _, err = call("put", "a/x", tmp_path / "text.npy")
    assert status == 1 and "text.npy" in err and err.count("\n") == 1
    status, _, err = call("--socket", tmp_path / "none", "ls")
    assert status == 1 and err.startswith("fsdp: ") and err.count("\n") == 1
    assert call()[0] == 2


def test_bench_prints_a_line_for_each_row(c):
    status, out, err = call("bench", "--json")
    assert (status, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["name"] for row in rows] == [
        "python_hold_release",
        "python_get_by_name",
        "python_memoryview",
        "python_channel_64KiB",
        "python_channel_1MiB",
        "python_channel_114",
    ]
    assert all(row["unit"] == "ns" and row["median"] >= row["least"] for row in rows)
    assert fsdp.default().names() == []


def test_an_unknown_option_says_where_the_help_is():
    for words in [], ["ls"]:
        code, out, said = call(*words, "--nothing")
        assert (code, out) == (2, "") and said.endswith("--help\n")


def test_bench_names_a_package_that_is_missing(c):
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
