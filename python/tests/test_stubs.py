"""Checks that the stubs match the package."""

import ast
import inspect
import os
import pathlib
import subprocess
import sys
from collections.abc import Mapping, Sequence

import pytest

import fsdp

STUBS = sorted(pathlib.Path(fsdp.__file__).parent.glob("*.pyi"))
STUB = next(stub for stub in STUBS if stub.stem == "__init__")
# Methods that Python calls; their signatures are the same everywhere.
SLOTS = {"__iter__", "__init__", "__buffer__", "__getitem__", "__contains__", "__len__", "__enter__", "__exit__"}


def parameters(node):
    args = node.args
    named = [*args.posonlyargs, *args.args, args.vararg, *args.kwonlyargs, args.kwarg]
    return [arg.arg for arg in named if arg is not None and arg.arg not in ("self", "cls")]


def functions(body):
    """Yields the name and the parameters of each function, without properties
    and the methods that Python calls."""
    for node in body:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        decorators = [d.id for d in node.decorator_list if isinstance(d, ast.Name)]
        if "property" not in decorators and node.name not in SLOTS:
            yield node.name, parameters(node)


def module_of(stub):
    if stub == STUB:
        return fsdp
    name = f"fsdp.{stub.stem}"
    return pytest.importorskip(name, reason=f"{name} cannot be imported without torch")


@pytest.mark.parametrize("stub", STUBS, ids=lambda stub: stub.stem)
def test_the_stubs_have_the_signatures_of_the_package(stub):
    module, tree = module_of(stub), ast.parse(stub.read_text())
    owners = [(module, tree.body)]
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            owners.append((getattr(module, node.name), node.body))
    for owner, body in owners:
        for name, names in functions(body):
            signature = inspect.signature(getattr(owner, name))
            # A function that is written in C does not name its `self`.
            assert [n for n in signature.parameters if n != "self"] == names, name


@pytest.mark.parametrize("name", fsdp.__all__)
def test_the_stubs_have_all_public_attributes(name):
    nodes = {getattr(n, "name", None): n for n in ast.parse(STUB.read_text()).body}
    thing = getattr(fsdp, name)
    if name == "DTYPES":
        return
    assert name in nodes
    if inspect.isclass(thing) and not issubclass(thing, Exception):
        described = {n.name for n in nodes[name].body if hasattr(n, "name")}
        inherited = {a for base in (Mapping, Sequence) if issubclass(thing, base) for a in dir(base)}
        public = {a for a in dir(thing) if not a.startswith("_")} - inherited
        assert public <= described


def test_a_program_passes_strict_type_checks(tmp_path):
    pytest.importorskip("mypy", reason="mypy is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    (tmp_path / "program.py").write_text(
        """
import asyncio
import fsdp
import fsdp.dcp
import fsdp.distributed
import fsdp.graph
import fsdp.safetensors
import fsdp.torch

c = fsdp.connect()
t: fsdp.Tensor = c.alloc((2, 3), "f32", timeout=1.5)
many: list[fsdp.Tensor] = c.alloc([((2,), "f32"), (3, "u8")])
version: int = t.publish("a/x", replace=True)
more: list[fsdp.Tensor] = c.get(["a/x"], timeout=None)
with c.stage("m/", replace=True) as b:
    w: fsdp.Tensor = b.alloc("w", (2, 3), "f32")
    ws: list[fsdp.Tensor] = b.alloc([("v", 2, "u8")])
for name, weight in c.bundle("m/", timeout=1).items():
    names: str = name + weight.dtype
memoryview(t)
slab: fsdp.Slab = c.channel("ch", "producer").alloc([((2, 3), "f32")], timeout=1)
slab[0][:] = 1
slab.send({"step": 7})

def train(loader: fsdp.torch.DataLoader[int]) -> int:
    return len(loader)

async def main() -> fsdp.Tensor:
    m: fsdp.Bundle = await c.abundle("m/", newer_than=1, timeout=None)
    return await c.aget("a/x")

asyncio.run(main())
"""
    )
    # mypy takes stubs in PYTHONPATH for those of installed packages, and hides
    # their errors.
    env = {**os.environ, "MYPYPATH": os.environ["PYTHONPATH"]}
    del env["PYTHONPATH"]
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "program.py"],
        cwd=tmp_path,
        env=env,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
