import importlib.metadata
import os
import subprocess
import sys
import zipfile

import pytest

import fsdp
from conftest import BUILD

pytest.importorskip("setuptools", reason="setuptools is not installed")
pytest.importorskip("wheel", reason="wheel is not installed")


def test_the_wheel_is_for_all_pythons_and_brings_libfsdp(tmp_path):
    setup = ["setup.py", "-q", "egg_info", "-e", tmp_path]
    setup += ["build", "-b", tmp_path / "base", "bdist_wheel", "-b", tmp_path / "built", "-d", tmp_path]
    subprocess.run(
        [sys.executable, *map(str, setup)],
        cwd=BUILD / "python",
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    assert "-cp311-abi3-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    points = {
        (point.group, point.name)
        for dist in importlib.metadata.distributions(path=[str(tmp_path / "site")])
        for point in dist.entry_points
    }
    assert points == {("vllm.general_plugins", "fsdpd"), ("sglang.srt.plugins", "fsdpd")}
    seen = subprocess.run(
        [
            sys.executable,
            "-c",
            "import fsdp; print(fsdp.__version__)\n"
            "for line in open('/proc/self/maps'):\n"
            "    if 'libfsdp' in line: print(line.split()[-1])",
        ],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(tmp_path / "site")},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    assert seen[0] == fsdp.__version__
    assert set(seen[1:]) == {str(tmp_path / "site" / "fsdp" / "libfsdp.so.0")}
