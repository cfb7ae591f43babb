"""safetensors files whose tensors are in the broker once, for all processes.

The functions are those of the package safetensors. They return memory of the
broker, read-only: the first process on the node that opens a file reads it, and
all others attach it.
"""

import errno
import hashlib
import os
import re

from ._default import default
from ._dtypes import DTYPES
from ._errors import NotFound, make
from ._format import FORMAT_OF_DTYPES, Entry, header_of, write_file
from ._load import bytes_of, load_once
from ._source import source_of
from ._tensor import Tensor

_TORCH, _NUMPY = ("pt", "torch", "pytorch"), ("np", "numpy")


def name_of_files(paths):
    """Return the name of the bundle for files if the caller gives no name. It
    changes if a file is changed or replaced, and differs for each user."""
    identities = []
    for path in map(os.path.realpath, map(os.fsdecode, paths)):
        stat = os.stat(path)
        identities.append(
            (path, stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns)
        )
    digest = hashlib.blake2b(repr(identities).encode(), digest_size=8).hexdigest()
    stem = os.fsdecode(paths[0])
    if len(paths) > 1:  # several files are named after their folder
        stem = os.path.dirname(stem)
    stem = os.path.basename(os.path.realpath(stem))
    stem = re.sub(r"[^\w.-]", "_", stem, flags=re.ASCII)[:64]
    return f"safetensors.{os.getuid()}/{stem}.{digest}/"


def name_of_file(path):
    """Return name_of_files() of one file."""
    return name_of_files([path])


def _attach(filename, prefix, client, progress):
    client = client or default()
    text = filename if isinstance(filename, str) else os.fsdecode(filename)
    if prefix is None and text.endswith("/"):
        return client.bundle(text)
    name = prefix or name_of_file(filename)
    return load_once(filename, name, client=client, progress=progress)


class _Slice:
    """A tensor that is read in parts: f.get_slice("w")[:, 8:16]."""

    def __init__(self, tensor, convert):
        self._tensor, self._convert = tensor, convert

    def get_shape(self):
        """The shape of the whole tensor: a list."""
        return list(self._tensor.shape)

    def get_dtype(self):
        """The dtype as the format names it, such as "BF16"."""
        return FORMAT_OF_DTYPES.get(self._tensor.dtype, self._tensor.dtype.upper())

    def __getitem__(self, index):
        return self._convert(self._tensor, index)


class safe_open:
    """Open a safetensors file, or a bundle, whose name ends in "/".

    It works like safetensors.safe_open, with `framework` "pt" or "np". The
    tensors are views of the broker's memory. `prefix` is the bundle in which
    the file's tensors are, or will be. `progress`: show a bar if the file is
    read.
    """

    def __init__(
        self,
        filename,
        framework,
        device="cpu",
        *,
        prefix=None,
        client=None,
        progress=False,
    ):
        if framework not in _TORCH + _NUMPY:
            raise make(
                errno.EINVAL,
                f'there is no framework {framework!r}; use "pt" or "np"',
            )
        self._is_torch, self._device = framework in _TORCH, device
        self._bundle = _attach(filename, prefix, client, progress)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._bundle = None

    def _open(self):
        if self._bundle is None:
            raise make(errno.EINVAL, "the file is closed; open it again")
        return self._bundle

    @property
    def bundle(self):
        """The fsdp.Bundle."""
        return self._open()

    def keys(self):
        """Return the names of the tensors, sorted."""
        return sorted(self._open())

    def offset_keys(self):
        """Return the names in the order of the file."""
        return list(self._open())

    def metadata(self):
        """Return the dict of strings of the file, or None if it has none."""
        return self._open().metadata or None

    def _convert(self, tensor, index):
        array = tensor.torch() if self._is_torch else tensor.numpy()
        array = array if index is None else array[index]
        if self._is_torch and str(self._device) != "cpu":
            array = array.to(self._device)
        return array

    def get_tensor(self, name):
        """Return a tensor, without a copy unless it is moved to a device."""
        return self._convert(self._open()[name], None)

    def get_slice(self, name):
        """Return a tensor of which parts can be read."""
        return _Slice(self._open()[name], self._convert)


def load_file(
    filename,
    device="cpu",
    *,
    prefix=None,
    client=None,
    framework="pt",
    progress=False,
):
    """Return all tensors of a file, or of a bundle, as a dict like that of
    safetensors.torch.

    The first process reads the file, and all others attach it; see
    fsdp.load_once(). `prefix` is the bundle's name; by default it is made from
    the file's path, size and times. `progress`: show a bar of tqdm if the file
    is read.
    """
    options = {"prefix": prefix, "client": client, "progress": progress}
    with safe_open(filename, framework, device, **options) as file:
        return {name: file.get_tensor(name) for name in file.offset_keys()}


def _bytes_of_torch(value):
    import torch

    flat = value.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return memoryview(flat.view(torch.uint8).numpy())


def _bytes_of(value):
    if isinstance(value, Tensor):
        return bytes_of(value)
    if type(value).__module__.split(".")[0] == "torch":
        return _bytes_of_torch(value)
    import numpy

    array = numpy.asarray(value)
    native = array.astype(array.dtype.newbyteorder("="), order="C", copy=False)
    return memoryview(native.reshape(-1).view("u1"))


def save_file(tensors, filename, metadata=None):
    """Write a dict of tensors (torch's, numpy's or fsdp's) to a file.

    The file exists only when it is complete.
    """
    values, entries = {}, []
    for name, value in tensors.items():
        source = source_of(value)
        values[name] = _bytes_of(value)
        entries.append(
            Entry(name, source.dtype, source.shape, 0, values[name].nbytes)
        )
    # Large elements come first, as the format requires for alignment.
    entries.sort(key=lambda entry: (-DTYPES[entry.dtype], entry.name))
    head = header_of(entries, metadata)
    write_file(filename, [head, *(values[entry.name] for entry in entries)])
