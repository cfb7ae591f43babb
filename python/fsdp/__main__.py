"""python -m fsdp: look at a broker, and pass arrays and models in and out."""

import argparse
import json
import math
import os
import signal
import sys

from . import __version__, _bench, _status
from ._default import connect
from ._errors import Error
from ._units import age, clean, count, size

# --- verbs --------------------------------------------------------------------


def _show_status(client, args):
    status = client.status()
    if args.json:
        print(json.dumps(status))
    else:
        print(*_status.lines(status), sep="\n")


_HEAD = ["NAME", "VERSION", "DTYPE", "SHAPE", "BYTES", "HOLDERS", "AGE", "DEVICE"]
_LEFT = {"NAME", "DTYPE", "SHAPE", "DEVICE"}


def _cells(entry):
    return [
        clean(entry["name"]),
        str(entry["version"]),
        entry["dtype"],
        str(list(entry["shape"])),
        size(entry["nbytes"]),
        str(entry["n_holders"]),
        age(entry["age_ms"]),
        entry["device"][: len("GPU-01234567")],
    ]


def _ls(client, args):
    entries = client.entries(args.prefix)
    if args.json:
        for entry in entries:
            print(json.dumps(entry))
        return
    rows = [_HEAD, *map(_cells, entries)]
    widths = [max(map(len, column)) for column in zip(*rows)]
    for row in rows:
        cells = [
            cell.ljust(width) if title in _LEFT else cell.rjust(width)
            for title, cell, width in zip(_HEAD, row, widths)
        ]
        print("  ".join(cells).rstrip())
    total = sum(entry["nbytes"] for entry in entries)
    print(f"\ntotal: {count(len(entries), 'tensor')}, {size(total)}")


def _get_bundle(client, args):
    from .safetensors import save_file

    bundle = client.bundle(args.name, timeout=args.timeout)
    if args.output:
        save_file(bundle, args.output, bundle.metadata or None)
        return
    for name, tensor in bundle.items():
        print(f"{clean(name)}  {tensor.dtype}  {list(tensor.shape)}")
        print(tensor.numpy())


def _get(client, args):
    if args.name.endswith("/"):
        _get_bundle(client, args)
        return
    array = client.get(args.name, timeout=args.timeout).numpy()
    if args.output:
        import numpy

        with open(args.output, "wb") as file:
            numpy.save(file, array)
    else:
        print(array)


def _put(client, args):
    import numpy

    try:
        array = numpy.lib.format.open_memmap(args.file, mode="r")
    except ValueError as error:
        raise Error(f"cannot read {args.file} as an .npy file: {error}") from error
    tensor = client.put(args.name, array)
    print(f"{tensor.name} v{tensor.version}: {size(tensor.nbytes)}")


def _load(client, args):
    from ._load import load_once

    paths = args.files[0] if len(args.files) == 1 else args.files
    bundle = load_once(paths, args.prefix, client=client, timeout=args.timeout)
    n, nbytes = count(len(bundle), "tensor"), size(bundle.nbytes)
    print(f"{bundle.name} v{bundle.version}: {n}, {nbytes}")


def _rm(client, args):
    client.remove(args.names)


# --- words --------------------------------------------------------------------


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _time(text):
    """Convert seconds, or "forever" to None."""
    seconds = math.inf if text == "forever" else float(text)
    if not seconds >= 0:
        raise ValueError
    return None if seconds == math.inf else seconds


_time.__name__ = "time"  # the name in error messages


def _add_time(parser, default, what):
    parser.add_argument(
        "--timeout",
        type=_time,
        default=default,
        metavar="SECONDS",
        help=f"{what}; or forever",
    )


def _add_looks(verbs):
    status = verbs.add_parser(
        "status", help="show the state of the broker, with a line for each warning"
    )
    status.add_argument(
        "--json", action="store_true", help="print all counters as one JSON object"
    )
    status.set_defaults(run=_show_status)
    ls = verbs.add_parser("ls", help="list the published tensors")
    ls.add_argument("prefix", nargs="?", help="list only names that begin with it")
    ls.add_argument(
        "--json", action="store_true", help="print one JSON object per line"
    )
    ls.set_defaults(run=_ls)


def _add_transfers(verbs):
    get = verbs.add_parser("get", help="print a tensor or a bundle, or write a file")
    get.add_argument("name", help="the name of a bundle ends in '/'")
    get.add_argument(
        "-o",
        "--output",
        metavar="FILE",
        help="write an .npy file, or for a bundle a .safetensors file",
    )
    _add_time(get, 0, "maximum time to wait until it is published")
    get.set_defaults(run=_get)
    put = verbs.add_parser("put", help="publish an .npy file, and replace the name")
    put.add_argument("name")
    put.add_argument("file", metavar="FILE.npy")
    put.set_defaults(run=_put)
    load = verbs.add_parser("load", help="publish a model as a bundle, unless it exists")
    load.add_argument(
        "files", nargs="+", metavar="FILE", help=".safetensors files, or an index"
    )
    load.add_argument(
        "--prefix", required=True, metavar="NAME/", help="name of the bundle"
    )
    _add_time(load, None, "maximum time to wait if another process is loading it")
    load.set_defaults(run=_load)
    rm = verbs.add_parser("rm", help="remove names; holders of a tensor keep it")
    rm.add_argument(
        "names", nargs="+", metavar="NAME", help="the name of a bundle ends in '/'"
    )
    rm.set_defaults(run=_rm)


_KINDS = {
    "channel": "small items to another process, compared with multiprocessing's queues",
    "model": "attach 1,000 weights, compared with the package safetensors; needs torch",
    "loader": "batches of fsdp.torch.DataLoader, compared with torch's; needs torch",
    "distributed": "collectives of torch.distributed, compared with gloo; needs torch",
    "dcp": "saves by fsdp.dcp.Writer, compared with torch's writers; needs torch",
}


def _add_bench(verbs):
    bench = verbs.add_parser(
        "bench", help="measure frequent calls, and compare them with their floors"
    )
    bench.add_argument(
        "--json", action="store_true", help="print one JSON object per line"
    )
    kinds = bench.add_mutually_exclusive_group()
    for kind, text in _KINDS.items():
        kinds.add_argument(
            f"--{kind}", action="store_const", const=kind, dest="kind", help=text
        )
    bench.add_argument(
        "--quick", action="store_true", help="run fewer rounds; needs one of the kinds"
    )
    bench.add_argument(
        "--second",
        metavar="PATH",
        help="with --distributed: socket of another broker, as of a second node",
    )
    bench.set_defaults(kind="calls")


def _parser():
    parser = _Parser(
        prog="python -m fsdp",
        description=__doc__.partition(": ")[2],
        epilog="Exit status: 0; 1 after a failure, with its cause on standard error; "
        "2 for wrong arguments. fsdpctl can do more.",
    )
    parser.add_argument(
        "--socket", metavar="PATH", help="socket of the broker; default: as for fsdpctl"
    )
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="VERB")
    _add_looks(verbs)
    _add_transfers(verbs)
    _add_bench(verbs)
    return parser


# --- main ---------------------------------------------------------------------


def _run(args):
    if args.verb == "bench":
        _bench.bench(args.socket, args.json, args.kind, args.quick, args.second)
        return
    with connect(args.socket) as client:
        args.run(client, args)


def _sentence(error):
    if isinstance(error, Error) or not isinstance(error, OSError):
        return str(error)
    what = error.filename or "standard output"
    return f"cannot use {what}: {error.strerror or error}"


def _die_of(number):
    """End by the signal, as a program does that does not catch it. The shell
    sees this."""
    signal.signal(number, signal.SIG_DFL)
    os.kill(os.getpid(), number)


def _flush():
    """Write what is left. The interpreter flushes again at its end, and must
    not find a full disk then."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise


def main(argv=None):
    parser = _parser()
    args = parser.parse_args(argv)
    if args.verb == "bench" and args.second and args.kind != "distributed":
        parser.error("--second needs --distributed")
    try:
        _run(args)
        _flush()
        return 0
    except KeyboardInterrupt:
        _die_of(signal.SIGINT)
    except BrokenPipeError:
        _die_of(signal.SIGPIPE)
    except ModuleNotFoundError as error:
        module = error.name.partition(".")[0]
        what = f"bench --{args.kind}" if args.verb == "bench" else args.verb
        print(f"fsdp: {what} needs the package {module}", file=sys.stderr)
    except (Error, OSError, BufferError) as error:
        print(f"fsdp: {clean(_sentence(error))}", file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
