"""What the documentation shows is what happens."""

import doctest
import inspect
import pathlib
import subprocess
import sys

import fsdp


def test_the_examples_of_the_package_are_true(c):
    assert doctest.testmod(fsdp, optionflags=doctest.IGNORE_EXCEPTION_DETAIL) == (0, 10)


def test_every_public_thing_is_described():
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
    """No symbol of CPython's but those that every 3.11 and later has."""
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


def test_the_module_finds_libfsdp_beside_itself():
    dynamic = subprocess.run(
        ["readelf", "-d", fsdp._fsdp.__file__], capture_output=True, text=True, check=True
    ).stdout
    assert "[$ORIGIN]" in dynamic
    assert sys.modules["fsdp"].__version__ == fsdp._fsdp.version


def test_the_examples_of_the_page_are_true(c):
    page = pathlib.Path(__file__).parents[2] / "docs" / "python.md"
    failed, tried = doctest.testfile(
        str(page),
        module_relative=False,
        optionflags=doctest.IGNORE_EXCEPTION_DETAIL | doctest.ELLIPSIS,
    )
    assert failed == 0 and tried > 12
