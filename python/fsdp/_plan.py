"""plan(): which collectives of a graph are sent together."""

import json
import os
import shutil
import subprocess
import tempfile

from ._errors import Error, Invalid

_REFUSED = 1  # fsdpctl's exit status if the graph or an option is invalid
_USAGE = 2


def _program():
    program = os.environ.get("FSDPCTL") or shutil.which("fsdpctl")
    if program is None:
        raise Error(
            "cannot plan: fsdpctl is not in PATH; install it, or set FSDPCTL to its path"
        )
    return program


def _options(options):
    for name, value in options.items():
        if value is None:
            continue
        if name.endswith("cap_mb"):
            caps = value if isinstance(value, (list, tuple)) else [value]
            value = ",".join(repr(float(cap)) for cap in caps)
        yield f"--{name.replace('_', '-')}={value}"


def plan(
    graph,
    *,
    mode=None,
    gather_mode=None,
    reduce_mode=None,
    cap_mb=None,
    gather_cap_mb=None,
    reduce_cap_mb=None,
    faithful=False,
):
    """Put the collectives of a graph into buckets, as `fsdpctl plan` does.

    The graph is a dict as fsdp.graph.from_fx() makes it, and as docs/graph.md
    describes it. A cap is a number of MiB, or a list with one for each bucket
    of a run; a mode is "default", "custom_ops", "custom_ops_multidtype" or
    "coalesced". With `faithful` the buckets are those of PyTorch's own passes.

    Returns a dict: "buckets", each with its "members" and their place on the
    wire; "left", the collectives in no bucket, and why; and "graph", in which
    every bucket is one collective. It needs no broker, but the program fsdpctl.
    """
    options = {"mode": mode, "cap_mb": cap_mb}
    options |= {"gather_mode": gather_mode, "reduce_mode": reduce_mode}
    options |= {"gather_cap_mb": gather_cap_mb, "reduce_cap_mb": reduce_cap_mb}
    command = [_program(), "plan", "--json", *_options(options)]
    if faithful:
        command.append("--faithful")
    with tempfile.TemporaryFile("w+") as file:
        json.dump(graph, file)
        file.seek(0)
        done = subprocess.run(
            [*command, "/dev/stdin"], stdin=file, capture_output=True, text=True
        )
    if done.returncode == 0:
        return json.loads(done.stdout)
    sentence = done.stderr.strip().removeprefix("fsdpctl: ").removeprefix("/dev/stdin: ")
    kind = Invalid if done.returncode in (_REFUSED, _USAGE) else Error
    ended = f"{command[0]} ended with status {done.returncode}"
    raise kind(f"cannot plan: {sentence or ended}")
