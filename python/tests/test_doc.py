"""Checks that the examples in the documentation do what it says."""

import doctest
import inspect
import pathlib
import re
import subprocess
import sys

import pytest

import fsdp

ROOT = pathlib.Path(__file__).parents[2]


def test_the_examples_of_the_package_run_as_shown(c):
    assert doctest.testmod(fsdp, optionflags=doctest.IGNORE_EXCEPTION_DETAIL) == (0, 10)


def test_every_public_object_is_documented():
    for name in fsdp.__all__:
        thing = getattr(fsdp, name)
        if name == "DTYPES":
            continue
        assert inspect.getdoc(thing), name
        if not inspect.isclass(thing) or issubclass(thing, Exception):
            continue
        for attribute in dir(thing):
            if not attribute.startswith("_"):
                assert inspect.getdoc(getattr(thing, attribute)), attribute


def test_the_module_uses_the_limited_api_only():
    """The module may use only symbols of CPython that 3.11 and every later
    version have."""
    symbols = subprocess.run(
        ["nm", "-D", "--undefined-only", fsdp._fsdp.__file__],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    private = {s for s in symbols if s.startswith("_Py")}
    assert private <= {
        "_PyArg_ParseTuple_SizeT",
        "_PyObject_CallMethod_SizeT",
        "_PyObject_New",
        "_Py_BuildValue_SizeT",
        "_Py_Dealloc",
        "_Py_FalseStruct",
        "_Py_NoneStruct",
        "_Py_TrueStruct",
    }


def test_the_module_finds_libfsdp_in_its_own_folder():
    dynamic = subprocess.run(
        ["readelf", "-d", fsdp._fsdp.__file__], capture_output=True, text=True, check=True
    ).stdout
    assert "[$ORIGIN]" in dynamic
    assert sys.modules["fsdp"].__version__ == fsdp._fsdp.version


def test_the_examples_of_the_page_run_as_shown(c):
    failed, tried = doctest.testfile(
        str(ROOT / "docs" / "python.md"),
        module_relative=False,
        optionflags=doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS,
    )
    assert failed == 0 and tried > 12


def paragraphs_of_readme():
    """Returns the paragraphs of README's only block of Python. The first one
    needs no torch."""
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.S)
    return block.split("\n\n")


def test_the_first_lines_of_the_readme_run(c):
    names = {}
    exec(paragraphs_of_readme()[0], names)
    assert names["x"].tolist() == list(range(1024)) and not names["x"].flags.writeable


def test_a_reader_of_the_readme_loads_a_model_and_data(c, tmp_path, monkeypatch):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    import fsdp.safetensors

    monkeypatch.chdir(tmp_path)
    weights = torch.nn.Linear(3, 2).state_dict()
    fsdp.safetensors.save_file(weights, "model.safetensors")
    names = {"fsdp": fsdp, "model": torch.nn.Linear(3, 2)}
    for paragraph in paragraphs_of_readme()[1:]:
        exec(paragraph, names)
    model = names["model"].state_dict()
    assert all(model[name].equal(weights[name]) for name in weights)
    data = torch.utils.data.TensorDataset(torch.arange(8))
    batches = names["DataLoader"](data, batch_size=4, num_workers=2)
    assert [x.tolist() for (x,) in batches] == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert names["load_file"]("model.safetensors")["weight"].equal(weights["weight"])
