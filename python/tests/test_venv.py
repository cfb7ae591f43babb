"""Tests that scripts/venv makes an environment with torch or without it."""

import os
import pathlib
import shutil
import subprocess

import pytest

SCRIPTS = pathlib.Path(__file__).parents[2] / "scripts"


REQUIREMENTS = "torch==2.13.0\n# and nothing else\n"


@pytest.fixture
def tree(tmp_path):
    """Makes a source tree whose build/venv was made with torch as its only
    requirement."""
    for folder in ("scripts", "python/tests", "build/venv"):
        (tmp_path / folder).mkdir(parents=True)
    shutil.copy(SCRIPTS / "venv", tmp_path / "scripts")
    for folder in ("python/tests", "build/venv"):
        (tmp_path / folder / "requirements.txt").write_text(REQUIREMENTS)
    return tmp_path


def make(tree, *options, **variables):
    """Runs the script without an index of pip. Returns the requirements of
    build/venv after that."""
    env = {**os.environ, "PIP_NO_INDEX": "1", "FSDP_NO_TORCH": "", **variables}
    env.pop("PYTHONPATH", None)
    subprocess.run([tree / "scripts/venv", *options], env=env, check=True)
    return (tree / "build/venv/requirements.txt").read_text()


@pytest.mark.parametrize("how", [["--no-torch"], []], ids=["option", "variable"])
def test_a_venv_made_without_torch_stays_without_it(tree, how):
    assert make(tree) == REQUIREMENTS
    variables = {} if how else {"FSDP_NO_TORCH": "1"}
    assert make(tree, *how, **variables) == "# and nothing else\n"
    assert (tree / "build/venv/bin/python").exists()
    assert make(tree) == "# and nothing else\n"
