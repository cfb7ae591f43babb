#!/usr/bin/python3
"""Add the request of docs/hacking.md by its recipe, and run the tests of
messages.

recipe.py SOURCES CC: the diffs are applied to copies in a folder that the
compiler CC searches before SOURCES.
"""
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

SOURCES, CC = Path(sys.argv[1]), sys.argv[2]


def recipe():
    """Return the file, the old and the new lines of each hunk."""
    text = (SOURCES / "docs/hacking.md").read_text()
    for diff in re.findall(r"^```diff\n(.*?)^```$", text, re.M | re.S):
        for path, body in re.findall(r"^# (\S+)\n(.*?)(?=^# |\Z)", diff, re.M | re.S):
            for hunk in re.split(r"^ ?\.\.\.\n", body, flags=re.M):
                lines = hunk.splitlines(keepends=True)
                yield (
                    path,
                    "".join(line[1:] for line in lines if line[0] != "+"),
                    "".join(line[1:] for line in lines if line[0] != "-"),
                )


def apply(folder):
    """Apply the diffs of the recipe to copies in the folder. Return the paths
    of the files that they change."""
    paths = set()
    for path, old, new in recipe():
        copy = folder / path
        text = (copy if copy.exists() else SOURCES / path).read_text()
        if text.count(old) != 1:
            sys.exit(f"{path} has these lines {text.count(old)} times:\n{old}")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(text.replace(old, new))
        paths.add(path)
    return paths


def run(*command):
    result = subprocess.run(command, check=False)
    if result.returncode != 0:
        sys.exit(f"failed: {shlex.join(map(str, command))}")


def try_in(folder):
    changed = apply(folder)

    def found(path):
        return (folder if path in changed else SOURCES) / path

    def compile_to(target, *sources):
        run(
            *(CC, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-o", target),
            *("-I", folder, "-I", folder / "proto", "-I", SOURCES),
            *("-D_GNU_SOURCE", "-DFSDP_TEST_POINTS", '-DFSDP_VERSION="0"'),
            *(f'-DFSDP_SOURCE_DIR="{folder}"', "-DBXF_STATIC_LIB=1"),
            *sources,
        )

    run("protoc-c", f"--c_out={folder}/proto", f"-I{folder}/proto", "fsdp.proto")
    for path in ("broker/verbs/dispatch.c", *changed):
        if path.startswith("broker/") and path.endswith(".c"):
            compile_to(folder / "object.o", "-c", found(path))
    tests = [f"tests/unit/proto/{name}.c" for name in ("message_samples", "test_message_field")]
    proto = [f"proto/{path.name}" for path in SOURCES.glob("proto/*.c")]
    compile_to(
        folder / "test",
        folder / "proto/fsdp.pb-c.c",
        *(found(path) for path in ["tests/lib/check.c", *tests, *proto]),
        *("-lcriterion", "-lprotobuf-c", "-lm", "-pthread"),
    )
    # The test writes message_limits.txt where it runs.
    result = subprocess.run([folder / "test"], cwd=folder, check=False)
    if result.returncode != 0:
        sys.exit("the tests of messages fail with the request of the recipe")


with tempfile.TemporaryDirectory() as name:
    try_in(Path(name))
