import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
import zipfile

import pytest

import fsdp
from conftest import BUILD

pytest.importorskip("setuptools", reason="setuptools is not installed")
pytest.importorskip("wheel", reason="wheel is not installed")


# Prints which files of this project a program with the package has mapped.
PROGRAM = """
import fsdp
print(fsdp.__version__)
for line in open('/proc/self/maps'):
    if any(name in line for name in ('libfsdp', 'libprotobuf-c', 'libxxhash')):
        print(line.split()[-1])
"""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    path = tmp_path_factory.mktemp("wheel")
    setup = ["setup.py", "-q", "egg_info", "-e", path]
    setup += ["build", "-b", path / "base", "bdist_wheel", "-b", path / "built", "-d", path]
    subprocess.run(
        [sys.executable, *map(str, setup)],
        cwd=BUILD / "python",
        check=True,
        capture_output=True,
    )
    (wheel,) = path.glob("*.whl")
    return wheel


def run_program(python, folder, site):
    """Returns the version that the program prints, and the libraries that it
    has mapped."""
    seen = subprocess.run(
        [python, "-c", PROGRAM],
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(site)},
        check=True,
        capture_output=True,
        text=True,
    ).stdout.split()
    return seen[0], set(seen[1:])


def test_the_wheel_works_with_all_pythons_and_includes_libfsdp(wheel, tmp_path):
    assert "-cp311-abi3-linux_" in wheel.name
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "site")
    points = {
        (point.group, point.name)
        for dist in importlib.metadata.distributions(path=[str(tmp_path / "site")])
        for point in dist.entry_points
    }
    assert points == {("vllm.general_plugins", "fsdpd"), ("sglang.srt.plugins", "fsdpd")}
    version, mapped = run_program(sys.executable, tmp_path, tmp_path / "site")
    assert version == fsdp.__version__
    assert str(tmp_path / "site" / "fsdp" / "libfsdp.so.0") in mapped
    assert len([path for path in mapped if "libfsdp" in path]) == 1


def newest_glibc(folder):
    """Returns the newest minor version of glibc 2 of which a library in the
    folder needs a symbol."""
    wanted = set()
    for path in folder.rglob("*.so*"):
        wanted |= set(re.findall(rb"\0GLIBC_2\.(\d+)", path.read_bytes()))
    return max(map(int, wanted))


def test_auditwheel_makes_the_wheel_portable(wheel, tmp_path):
    tools = f"{BUILD.parent / 'venv' / 'bin'}:{os.environ['PATH']}"
    if not shutil.which("auditwheel", path=tools):
        pytest.skip("auditwheel is not in build/venv; scripts/venv installs it")
    subprocess.run(
        ["auditwheel", "repair", wheel, "-w", tmp_path],
        env={**os.environ, "PATH": tools},
        check=True,
        capture_output=True,
    )
    (portable,) = tmp_path.glob("*.whl")
    env = tmp_path / "env"
    subprocess.run([sys.executable, "-m", "venv", env], check=True)
    install = [env / "bin" / "pip", "install", "-q", "--no-index", portable]
    subprocess.run(install, check=True, env={**os.environ, "PYTHONPATH": ""})
    version, mapped = run_program(env / "bin" / "python", tmp_path, "")
    assert version == fsdp.__version__
    # No library comes from the build or from the system.
    assert len(mapped) == 3 and all(path.startswith(str(env)) for path in mapped)
    (site,) = env.glob("lib/python*/site-packages")
    glibc = max(newest_glibc(site / "fsdp"), newest_glibc(site / "fsdp.libs"))
    assert f"-cp311-abi3-manylinux_2_{glibc}_" in portable.name
