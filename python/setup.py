"""Makes the wheel of what CMake has built: the target python_wheel runs it in
build/<preset>/python."""

import pathlib

from setuptools import Distribution, setup

import fsdp


class Binary(Distribution):
    """Not for every machine, although nothing is compiled here."""

    def has_ext_modules(self):
        return True


setup(
    name="fsdp",
    version=fsdp.__version__,
    description="The tensors of a node, shared between processes without copies",
    python_requires=">=3.11",
    packages=["fsdp"],
    entry_points=pathlib.Path("entry_points.txt").read_text(),
    package_data={"fsdp": ["*.so*", "*.pyi", "py.typed"]},
    distclass=Binary,
    zip_safe=False,
    options={"bdist_wheel": {"py_limited_api": "cp311"}},
)
