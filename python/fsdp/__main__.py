"""python -m fsdp: look at a broker, and pass arrays in and out."""

import argparse
import json
import sys

from . import __version__, _bench
from ._default import connect
from ._errors import Error


def _status(client, args):
    status = client.status()
    note = status.pop("note")
    if args.json:
        print(json.dumps({**status, "note": note}))
        return
    for name, value in status.items():
        print(f"{name:32}{value:>20}")
    if note:
        print(note)


def _ls(client, args):
    for entry in client.entries(args.prefix):
        if args.json:
            print(json.dumps(entry))
        else:
            shape = "x".join(map(str, entry["shape"])) or "scalar"
            print(
                f"{entry['name']}  v{entry['version']}  {entry['dtype']}  {shape}  "
                f"{entry['nbytes']} bytes"
            )


def _get(client, args):
    array = client.get(args.name, timeout=args.timeout).numpy()
    if args.output:
        import numpy

        numpy.save(args.output, array)
    else:
        print(array)


def _put(client, args):
    import numpy

    try:
        array = numpy.lib.format.open_memmap(args.file, mode="r")
    except ValueError as error:
        raise Error(f"cannot read {args.file} as an .npy file: {error}") from error
    tensor = client.put(args.name, array)
    print(f"{tensor.name} v{tensor.version}: {tensor.nbytes} bytes")


class _Parser(argparse.ArgumentParser):
    def error(self, message):
        self.exit(2, f"{self.prog}: {message}; see {self.prog} --help\n")


def _parser():
    parser = _Parser(prog="python -m fsdp", description=__doc__)
    parser.add_argument("--socket", help="of the broker; default: as fsdpctl")
    parser.add_argument("--version", action="version", version=__version__)
    verbs = parser.add_subparsers(dest="verb", required=True)
    status = verbs.add_parser("status", help="the broker's counters")
    status.add_argument("--json", action="store_true")
    ls = verbs.add_parser("ls", help="names")
    ls.add_argument("prefix", nargs="?")
    ls.add_argument("--json", action="store_true", help="one object per line")
    get = verbs.add_parser("get", help="print an array, or write an .npy file")
    get.add_argument("name")
    get.add_argument("-o", "--output", metavar="FILE.npy")
    get.add_argument("--timeout", type=float, default=0, help="seconds")
    put = verbs.add_parser("put", help="publish an .npy file")
    put.add_argument("name")
    put.add_argument("file", metavar="FILE.npy")
    bench = verbs.add_parser("bench", help="measure the hot calls")
    bench.add_argument("--json", action="store_true", help="one object per line")
    kinds = bench.add_mutually_exclusive_group()
    kinds.add_argument(
        "--model",
        action="store_const",
        const="model",
        dest="kind",
        help="attach 1,000 weights, beside the package safetensors; needs torch",
    )
    kinds.add_argument(
        "--loader",
        action="store_const",
        const="loader",
        dest="kind",
        help="batches of fsdp.torch.DataLoader, beside torch's; needs torch",
    )
    kinds.add_argument(
        "--distributed",
        action="store_const",
        const="distributed",
        dest="kind",
        help="collectives of torch.distributed, beside gloo; needs torch",
    )
    bench.add_argument("--quick", action="store_true", help="fewer rounds of --model, --loader and --distributed")
    bench.set_defaults(kind="calls")
    return parser


def main(argv=None):
    args = _parser().parse_args(argv)
    verbs = {"status": _status, "ls": _ls, "get": _get, "put": _put}
    try:
        if args.verb == "bench":
            _bench.bench(args.socket, args.json, args.kind, args.quick)
            return 0
        with connect(args.socket) as client:
            verbs[args.verb](client, args)
    except ModuleNotFoundError as error:
        module = error.name.partition(".")[0]
        what = f"bench --{args.kind}" if args.verb == "bench" else args.verb
        print(f"fsdp: {what} needs the package {module}", file=sys.stderr)
        return 1
    except (Error, OSError, BufferError) as error:
        print(f"fsdp: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
