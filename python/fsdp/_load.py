"""load_once(): the first of many processes loads a model, and all others attach it."""

import contextlib
import errno
import logging
import os
import time
from concurrent.futures import ThreadPoolExecutor

from . import _fsdp
from ._bundle import METADATA
from ._default import default
from ._errors import Exists, NotFound, make
from ._format import File, check_tensors, files_of

# A thread reads this much at a time, so that all threads end at about the same
# time.
_PIECE = 16 << 20

_ALIGN = 64


def _read(file, offset, view):
    """Fill the view, and return its size. Other Python threads run meanwhile."""
    size = view.nbytes
    while view.nbytes:
        n = os.preadv(file.fd, [view], offset)
        if n == 0:
            raise make(errno.EINVAL, f"cannot read {file.path}: the file is truncated")
        view, offset = view[n:], offset + n
    return size


def bytes_of(tensor):
    """Return all elements of a tensor: its memory, or a copy if it is strided."""
    view = memoryview(_fsdp.Bits(tensor))
    if not view.nbytes or not view.c_contiguous:
        return memoryview(view.tobytes())
    return view.cast("B")


def _pieces(file, tensors):
    for entry, tensor in zip(file.entries, tensors):
        view = bytes_of(tensor)
        for at in range(0, entry.nbytes, _PIECE):
            yield file, entry.offset + at, view[at : at + _PIECE]


@contextlib.contextmanager
def _progress(name, size, is_wanted):
    """Return a function that is called with numbers of bytes, and may show a bar."""
    tqdm = None
    try:
        if is_wanted:
            from tqdm.auto import tqdm
    except ImportError:
        logging.getLogger("fsdp").warning(
            "cannot show the progress of %s: tqdm is not installed; install it", name
        )
    if tqdm is None:
        yield lambda n: None
        return
    with tqdm(desc=name, total=size, unit="B", unit_scale=True) as bar:
        yield bar.update


def _fill(stage, files, update):
    pool = ThreadPoolExecutor(min(8, os.cpu_count() or 1))
    try:
        for file in files:
            stage.metadata.update(file.metadata)
            tensors = stage.alloc([(e.name, e.shape, e.dtype) for e in file.entries])
            # This loop raises the exceptions of the threads.
            for n in pool.map(lambda piece: _read(*piece), _pieces(file, tensors)):
                update(n)
    finally:
        pool.shutdown(cancel_futures=True)


def _load(client, files, name, options, progress):
    size = sum(
        -(-entry.nbytes // _ALIGN) * _ALIGN for file in files for entry in file.entries
    )
    n_bytes = sum(entry.nbytes for file in files for entry in file.entries)
    with client.stage(name, size=size, **options) as stage:
        with _progress(name, n_bytes, progress) as update:
            _fill(stage, files, update)
        if not stage.metadata and not any(file.entries for file in files):
            stage.put(METADATA, b"{}")  # a bundle needs a member


def _load_files(client, path, name, options, progress):
    files = []
    try:
        paths, index = files_of(path)
        for one in paths:
            files.append(File(one))
        check_tensors(files, index)
        _load(client, files, name, options, progress)
    finally:
        for file in files:
            file.close()


def load_once(
    path,
    name,
    *,
    client=None,
    timeout=None,
    ttl=None,
    mode=0,
    gid=None,
    progress=False,
):
    """Attach the bundle `name`, and load it from safetensors files first if it
    does not exist. Return a Bundle.

    Of many processes that call it, one loads; the others wait, for at most
    `timeout` seconds (None: without limit), and attach the bundle that it has
    loaded. If it dies first, the next one loads. The bundle stays when all of
    them have ended, until Client.remove(name), or until `ttl` seconds after it
    was loaded; processes that have attached it keep it. `path` is a file, a
    list of files, or a model's .safetensors.index.json. `progress`: the process
    that loads shows a bar, if tqdm is installed.
    """
    client = client or default()
    options = {"once": True, "ttl": ttl, "mode": mode, "gid": gid}
    end = None if timeout is None else time.monotonic() + timeout
    clash = None
    while True:
        try:
            return client.bundle(name)
        except NotFound:
            if clash:  # the clash is with another name than the bundle's own
                raise clash from None
        left = None if end is None else max(0, end - time.monotonic())
        try:
            options["timeout"] = left
            _load_files(client, path, name, options, progress)
        except Exists as error:
            clash = error  # usually another process was first
