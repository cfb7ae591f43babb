"""safetensors files: 8 bytes with the size of a JSON header, the header, which
says where each tensor's bytes are, and then the bytes.

A file can come from anywhere, so its header is checked before any data is used:
the tensors must fill the data without holes, overlaps or a rest, and each must
have the size that its dtype and shape need.
"""

import errno
import json
import math
import os
import stat
import struct
import tempfile

from ._bundle import METADATA, strings_of
from ._dtypes import DTYPES
from ._errors import make

_MAX_HEADER = 100_000_000

#: Our names of dtypes, by the names of the format.
DTYPES_OF_FORMAT = {
    "BOOL": "bool",
    "U8": "u8",
    "I8": "i8",
    "U16": "u16",
    "I16": "i16",
    "U32": "u32",
    "I32": "i32",
    "U64": "u64",
    "I64": "i64",
    "F16": "f16",
    "BF16": "bf16",
    "F32": "f32",
    "F64": "f64",
    "F8_E4M3": "f8_e4m3",
    "F8_E5M2": "f8_e5m2",
    "C64": "c64",
}
FORMAT_OF_DTYPES = {ours: theirs for theirs, ours in DTYPES_OF_FORMAT.items()}


def _refuse(path, why):
    return make(errno.EINVAL, f"cannot read {path}: {why}")


class Entry:
    """A tensor of a file. Its bytes are at `offset`, `nbytes` of them."""

    def __init__(self, name, dtype, shape, offset, nbytes):
        self.name, self.dtype, self.shape = name, dtype, shape
        self.offset, self.nbytes = offset, nbytes


def _parse_entry(path, name, value):
    try:
        dtype, shape = DTYPES_OF_FORMAT[value["dtype"]], tuple(value["shape"])
        begin, end = value["data_offsets"]
        is_sound = all(type(n) is int and n >= 0 for n in (*shape, begin, end))
    except (KeyError, TypeError, ValueError):
        is_sound = False
    if not is_sound:
        raise _refuse(path, f"the header describes tensor {name!r} by {value!r}")
    if end - begin != math.prod(shape) * DTYPES[dtype]:
        raise _refuse(path, f"the size of tensor {name!r} does not fit its shape")
    return Entry(name, dtype, shape, begin, end - begin)


def _without_duplicates(pairs):
    result = dict(pairs)
    if len(result) != len(pairs):
        raise ValueError("it has a name twice")
    return result


def _parse(path, text, data_size):
    """Return (entries by offset, metadata) of the header. Offsets count from
    the data."""
    try:
        header = json.loads(text, object_pairs_hook=_without_duplicates)
    except (ValueError, RecursionError) as error:
        raise _refuse(path, f"the header is not JSON ({error})") from None
    if not isinstance(header, dict):
        raise _refuse(path, "the header is not a JSON object")
    metadata = header.pop(METADATA, None) or {}
    if not isinstance(metadata, dict) or any(
        not isinstance(value, str) for value in metadata.values()
    ):
        raise _refuse(path, f"{METADATA} is not an object of strings")
    entries = [_parse_entry(path, *item) for item in header.items()]
    entries.sort(key=lambda entry: (entry.offset, entry.nbytes))
    at = 0
    for entry in entries:
        if entry.offset != at:
            raise _refuse(path, f"there is a hole or an overlap before {entry.name!r}")
        at += entry.nbytes
    if at != data_size:
        raise _refuse(path, f"it has {data_size} bytes of data, but its tensors have {at}")
    return entries, metadata


class File:
    """An open file, with its `entries` in the order of their offsets, and its
    `metadata`."""

    def __init__(self, path):
        self.path = os.fspath(path)
        try:
            # An open of a FIFO would wait for a writer.
            self.fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except ValueError as error:  # an index may list such a name
            raise _refuse(self.path, f"no file has such a name ({error})") from None
        try:
            self.entries, self.metadata = self._read_header()
        except BaseException:
            self.close()
            raise

    def _read_header(self):
        status = os.fstat(self.fd)
        if stat.S_ISDIR(status.st_mode):
            raise _refuse(
                self.path,
                "it is a directory; give a .safetensors file of it, or its "
                ".safetensors.index.json",
            )
        if not stat.S_ISREG(status.st_mode):
            raise _refuse(
                self.path,
                "it is not a regular file; copy its bytes to one and name that",
            )
        size = status.st_size
        start = os.pread(self.fd, 8, 0)
        n = struct.unpack("<Q", start)[0] if len(start) == 8 else size
        if n > min(size - 8, _MAX_HEADER):
            raise _refuse(self.path, "it is not a safetensors file, or it is truncated")
        entries, metadata = _parse(self.path, os.pread(self.fd, n, 8), size - 8 - n)
        for entry in entries:
            entry.offset += 8 + n
        return entries, metadata

    def close(self):
        os.close(self.fd)


def _read_index(path):
    """Return {tensor: its file} of an index."""
    with open(path, encoding="utf-8") as file:
        try:
            index = json.load(file, object_pairs_hook=_without_duplicates)
            names = index["weight_map"].items()
            is_outside = any(os.path.basename(name) != name for _, name in names)
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise _refuse(
                path, f"it is not an index of safetensors files ({error})"
            ) from None
    if is_outside:
        raise _refuse(path, "it lists files of other directories")
    if not names:
        raise _refuse(
            path,
            'its "weight_map" names no file; download the index again, or give the files',
        )
    folder = os.path.dirname(path)
    return {tensor: os.path.join(folder, name) for tensor, name in names}


def files_of(path):
    """Return the files of a path, a list of paths, or an index, and {tensor: its
    file} of the index."""
    if not isinstance(path, (str, bytes, os.PathLike)):
        files = [os.fspath(one) for one in path]
        if not files:
            raise make(errno.EINVAL, "cannot load a list without files; give one")
        return files, {}
    path = os.fsdecode(path)
    if not path.endswith(".safetensors.index.json"):
        return [path], {}
    index = _read_index(path)
    return sorted(set(index.values())), index


def check_tensors(files, index):
    """Check that no tensor is in two files, and that each is in the file that
    the index gives for it. A file may have others."""
    places = {}
    for file in files:
        for entry in file.entries:
            if entry.name in places:
                raise make(
                    errno.EINVAL,
                    f"tensor {entry.name!r} is in two files, {places[entry.name]} "
                    f"and {file.path}; leave one of them out",
                )
            places[entry.name] = file.path
    for name, path in index.items():
        if places.get(name) != path:
            raise make(
                errno.EINVAL,
                f"the index says that tensor {name!r} is in "
                f"{os.path.basename(path)}, but it is not there",
            )


def header_of(entries, metadata):
    """Return the header of a file with these entries, one after another."""
    header = {METADATA: strings_of(metadata)} if metadata else {}
    at = 0
    for entry in entries:
        if entry.name == METADATA:
            raise make(
                errno.EINVAL,
                f"cannot write a tensor {METADATA!r}: safetensors files have their "
                "metadata by this name; give it another",
            )
        if entry.dtype not in FORMAT_OF_DTYPES:
            raise make(
                errno.EINVAL,
                f"cannot write tensor {entry.name!r}: safetensors files have no "
                f"{entry.dtype}; convert it",
            )
        header[entry.name] = {
            "dtype": FORMAT_OF_DTYPES[entry.dtype],
            "shape": list(entry.shape),
            "data_offsets": [at, at + entry.nbytes],
        }
        at += entry.nbytes
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def _umask():
    """os.umask() sets it as well, for a moment and for all threads."""
    with open("/proc/self/status", encoding="ascii") as status:
        return next(int(line[6:], 8) for line in status if line.startswith("Umask:"))


def _mode_for(path):
    """Return the mode of the file that is replaced, or that of a new file."""
    try:
        return os.stat(path).st_mode & 0o777
    except FileNotFoundError:
        return 0o666 & ~_umask()


def write_file(path, parts):
    """Write the buffers to a file. It exists only when it is complete. A
    symbolic link is followed. What is no file of a folder, such as a device, a
    pipe or a file without a name, is written directly, because a rename would
    replace it, or make another file."""
    path = os.fsdecode(path)
    real = os.path.realpath(path)
    is_file = os.path.isfile(real) or not os.path.exists(path)
    # open() refuses the path of a folder, such as "new/" or "new/.". The real
    # path has lost such an end.
    if not is_file or os.path.basename(path) in ("", os.curdir, os.pardir):
        with open(path, "wb") as file:
            file.writelines(parts)
        return
    with tempfile.NamedTemporaryFile(
        dir=os.path.dirname(real), prefix=".fsdp.", delete=False
    ) as file:
        try:
            file.writelines(parts)
            file.flush()
            os.fsync(file.fileno())
            os.fchmod(file.fileno(), _mode_for(real))
            os.rename(file.name, real)
        except BaseException:
            os.unlink(file.name)
            raise
