"""torch.distributed.checkpoint into the memory of the broker.

>>> import torch.distributed.checkpoint as dcp      # doctest: +SKIP
>>> dcp.save(state, storage_writer=fsdp.dcp.Writer("run7"))    # doctest: +SKIP
>>> dcp.load(state, storage_reader=fsdp.dcp.Reader("run7"))    # doctest: +SKIP

The trainer waits for one copy of its memory, and then continues. The checkpoint
survives the trainer, and a restart of the broker; drain() writes it to disk
meanwhile. Each save has slabs of its own, which are tensors with the values of
one rank, one after another. finish() publishes the metadata, which names the
slabs. So a save that was not finished is never found, and the previous one
stays until then. All ranks must be on one node.

A slab is not a bundle, since the memory of a bundle is sealed and never used
again. A save writes to the memory of the last save but one, without the page
faults of fresh memory.
"""

import contextlib
import ctypes
import dataclasses
import errno
import fcntl
import glob
import io
import os
import pickle
import sys
import uuid
from typing import NamedTuple

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ._default import default
from ._dense import check_dense
from ._dtypes import name_of
from ._errors import NotFound, make
from ._load import bytes_of

_ALIGN = 64
# The size of a large slab is a multiple of this. Pickled values vary in size,
# and the next slab should fit where one was freed.
_STEP = 2 << 20
_ID_SIZE = 16  # of the id of a save, in hexadecimal digits


def _done(value):
    future = Future()
    future.set_result(value)
    return future


class _Place(NamedTuple):
    """The place of a value, as the published metadata describes it."""

    slab: str  # name of the slab
    offset: int
    dtype: str
    shape: tuple


def _layout(slab, values):
    """Return the place of each value, and the total size."""
    places, size = [], 0
    for value in values:
        places.append(_Place(slab, size, name_of(value.dtype), tuple(value.shape)))
        size += -(-value.nbytes // _ALIGN) * _ALIGN
    if size > _STEP:
        size = -(-size // _STEP) * _STEP
    return places, size


def _copy(value, memory, offset):
    """Copy a value's elements to the memory at `offset`.

    Contiguous elements are copied by memcpy: copy_() takes 1.4 times as long
    for large tensors, and with its views 8 times as long for small ones.
    """
    if (
        type(value) is torch.Tensor
        and value.device.type == "cpu"
        and value.is_contiguous()
        and not value.is_conj()
        and not value.is_neg()
    ):
        ctypes.memmove(memory.data_ptr() + offset, value.data_ptr(), value.nbytes)
        return
    part = memory[offset : offset + value.nbytes]
    part.view(value.dtype).view(value.shape).copy_(value)


class _Checkpoint:
    """The names that a checkpoint of this user has in the broker."""

    def __init__(self, checkpoint_id, client):
        text = os.fspath(checkpoint_id)
        if not text or any(p in ("", "meta") or p[:5] == "data." for p in text.split("/")):
            raise make(
                errno.EINVAL,
                f"{text!r} is not the name of a checkpoint; use one such as run7/step100",
            )
        self.id, self.client = text, client or default()
        self._base = f"ckpt.{os.getuid()}/{text}/"

    def slab_name(self, save_id, rank):
        return f"{self._base}data.{save_id}/{rank}"

    def publish(self, save_id, metadata, mode):
        """Publish the metadata of a complete save, in place of the last one."""
        data = save_id.encode() + pickle.dumps(metadata)
        self.client.put(f"{self._base}meta", data, mode=mode)

    def _missing(self):
        return make(
            errno.ENOENT,
            f"there is no finished checkpoint '{self.id}'; fsdpctl ls "
            f"ckpt.{os.getuid()}/ lists those of this user",
        )

    def _newest(self):
        """Return the id of the last finished save, and its pickle."""
        # A pickle can run code, so it must come from this user.
        try:
            tensor = self.client.get(f"{self._base}meta", trusted_uid=os.getuid())
        except NotFound:
            raise self._missing() from None
        data = memoryview(tensor)
        save_id = bytes(data[:_ID_SIZE])
        if not save_id.isalnum():
            raise make(
                errno.EINVAL,
                f"cannot use checkpoint '{self.id}': another version of fsdp "
                f"saved it; remove it (fsdpctl rm --prefix {self._base}) first",
            )
        return save_id.decode(), data[_ID_SIZE:]

    def metadata(self):
        return pickle.loads(self._newest()[1])

    def sweep(self):
        """Free everything that does not belong to the last finished save. This
        reads no pickle, which would take long if there are many tensors."""
        try:
            used = self.slab_name(self._newest()[0], "")
        except NotFound:
            used = None
        names = self.client.names(f"{self._base}data.")
        unused = [name for name in names if not used or not name.startswith(used)]
        if unused:
            self.client.remove(unused)

    def remove(self):
        try:
            self.client.remove(f"{self._base}meta")
        except NotFound:
            raise self._missing() from None
        self.sweep()


class Writer(StorageWriter):
    """The storage_writer of torch.distributed.checkpoint.save().

    `checkpoint_id` is a name such as "run7" or "run7/step100". A later save
    under the same name replaces the checkpoint when it is complete.
    """

    def __init__(self, checkpoint_id, *, client=None, mode=0):
        super().__init__()
        self._client, self._mode = client, mode
        self._checkpoint = _Checkpoint(checkpoint_id, client)
        self.reset()

    def reset(self, checkpoint_id=None):
        """Begin another save. torch calls it."""
        if checkpoint_id:
            self._checkpoint = _Checkpoint(checkpoint_id, self._client)
        self._save_id = uuid.uuid4().hex[:_ID_SIZE]

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if not kwargs.get("use_collectives", True):
            raise make(
                errno.EINVAL,
                "cannot save without use_collectives=True; leave the argument out",
            )

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        # No rank has written yet, so unfinished slabs belong to a save that
        # died.
        self._checkpoint.sweep()
        return [
            dataclasses.replace(
                plan, storage_data=self._checkpoint.slab_name(self._save_id, rank)
            )
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan, planner):
        """Copy this rank's part. When it returns, the trainer may continue."""
        values = [self._resolve(item, planner) for item in plan.items]
        places, size = _layout(plan.storage_data, values)
        if values:
            self._write(plan.storage_data, size, places, values)
        return _done(
            [
                WriteResult(item.index, value.nbytes, place)
                for item, value, place in zip(plan.items, values, places)
            ]
        )

    @staticmethod
    def _resolve(item, planner):
        value = planner.resolve_data(item)
        if item.type != WriteItemType.BYTE_IO:
            check_dense(value, "save")
            return value.detach()
        return torch.frombuffer(bytearray(value.getbuffer() or b"\0"), dtype=torch.uint8)

    def _write(self, name, size, places, values):
        slab = self._checkpoint.client.alloc(size, "u8", mode=self._mode)
        memory = slab.torch()
        for place, value in zip(places, values):
            _copy(value, memory, place.offset)
        slab.publish(name)

    def finish(self, metadata, results):
        """Publish the checkpoint, and free the previous one."""
        metadata.storage_data = {
            result.index: result.storage_data for some in results for result in some
        }
        metadata.storage_meta = self.storage_meta()
        self._checkpoint.publish(self._save_id, metadata, self._mode)
        self._checkpoint.sweep()

    def storage_meta(self):
        return StorageMeta(checkpoint_id=self._checkpoint.id, save_id=self._save_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """Return False: torch must not choose this class by a path."""
        return False


class Reader(StorageReader):
    """The storage_reader of torch.distributed.checkpoint.load(). Any number of
    ranks can read a checkpoint that any number of ranks saved."""

    def __init__(self, checkpoint_id, *, client=None):
        super().__init__()
        self._client = client
        self._checkpoint = _Checkpoint(checkpoint_id, client)
        self.reset()

    def reset(self, checkpoint_id=None):
        """Begin another load. torch calls it."""
        if checkpoint_id:
            self._checkpoint = _Checkpoint(checkpoint_id, self._client)
        self._places, self._slabs = {}, {}

    def read_metadata(self, *args, **kwargs):
        """Return the metadata of the last finished save, and hold its slabs,
        which a later save would free."""
        while True:
            metadata = self._checkpoint.metadata()
            try:
                for place in metadata.storage_data.values():
                    self._hold(place.slab)
                return metadata
            except NotFound:
                newest = self._checkpoint.metadata().storage_meta
                if newest.save_id == metadata.storage_meta.save_id:
                    raise
                self._slabs = {}

    def _hold(self, name):
        if name not in self._slabs:
            self._slabs[name] = self._checkpoint.client.get(name)
        return self._slabs[name]

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def tensor(self, index):
        """Return the tensor that was saved under an index of the metadata."""
        place = self._places[index]
        slab = self._hold(place.slab)
        return slab.view(place.shape, place.dtype, offset=place.offset)

    def read_data(self, plan, planner):
        for item in plan.items:
            source = self.tensor(item.storage_index)
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(bytes_of(source)))
                continue
            part = source.torch()
            for dim, (at, n) in enumerate(zip(item.storage_offsets, item.lengths)):
                part = part.narrow(dim, at, n)
            target = planner.resolve_tensor(item).detach()
            target.copy_(part)
            planner.commit_tensor(item, target)
        self._slabs = {}
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """Return False: torch must not choose this class by a path."""
        return False


# --- to disk ------------------------------------------------------------------


def _save(tensor, file):
    """torch.save(). After a failed write, or KeyboardInterrupt, it raises an
    error about positions."""
    # The caller may handle an error, because of which it drains.
    handled = sys.exception()
    try:
        torch.save(tensor, file)
    except RuntimeError as error:
        cause = error.__context__
        raise (error if cause in (None, handled) else cause) from None


def _write_slab(path, file_name, reader, items):
    """Write a file as torch's writer does. Return {index: where it is}."""
    places = {}
    with open(os.path.join(path, file_name), "wb") as file:
        for index, is_bytes in items:
            offset, tensor = file.tell(), reader.tensor(index)
            if is_bytes:
                file.write(bytes_of(tensor))
            else:
                _save(tensor.torch(), file)
            places[index] = _StorageInfo(file_name, offset, file.tell() - offset)
        file.flush()
        os.fsync(file.fileno())
    return places


@contextlib.contextmanager
def _only_drain(path):
    """Make the directory, and wait until no other drain writes to it."""
    os.makedirs(path, exist_ok=True)
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield directory
    finally:
        # A child that another thread forked meanwhile has the lock as well.
        fcntl.flock(directory, fcntl.LOCK_UN)
        os.close(directory)


def _write_files(reader, path, directory):
    """Write the files of a checkpoint, then its metadata. Return their names."""
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    by_slab = {}
    for index, place in metadata.storage_data.items():
        kind = metadata.state_dict_metadata[index.fqn]
        is_bytes = isinstance(kind, BytesStorageMetadata)
        by_slab.setdefault(place.slab, []).append((index, is_bytes))
    # The directory may have this very save already, whose files must stay.
    drain_id = uuid.uuid4().hex[:_ID_SIZE]
    names = [f"__{i}_0.{drain_id}.distcp" for i in range(len(by_slab))]
    places = {}
    temporary = os.path.join(path, ".metadata.tmp")
    try:
        with open(temporary, "wb") as file:
            for name, items in zip(names, by_slab.values()):
                places.update(_write_slab(path, name, reader, items))
            metadata.storage_data = places
            pickle.dump(metadata, file)
            file.flush()
            os.fsync(file.fileno())
        os.fsync(directory)  # the files are there before what names them
        os.replace(temporary, os.path.join(path, ".metadata"))
    except BaseException:  # a full disk, for example
        with contextlib.suppress(OSError):
            # This fails if the interrupt came after the last step. The files
            # are those of the checkpoint then.
            os.unlink(temporary)
            for name in names:
                os.unlink(os.path.join(path, name))
        raise
    return names


def drain(checkpoint_id, path, *, client=None):
    """Write a checkpoint to a directory, from which torch's own
    FileSystemReader can load it. Any process can do this while the trainer
    continues; a second one waits for the first if it is on the same node.

    The directory is a valid checkpoint only when it is complete. If it is one
    already, it stays that checkpoint until then. Its earlier files are removed
    at the end.
    """
    reader = Reader(checkpoint_id, client=client)
    reader.read_metadata()  # no directory is made for a missing checkpoint
    reader.reset()
    with _only_drain(path) as directory:
        names = _write_files(reader, path, directory)
        os.fsync(directory)
        for old in set(glob.glob("__*.distcp", root_dir=path)) - set(names):
            os.unlink(os.path.join(path, old))


def remove(checkpoint_id, *, client=None):
    """Free a checkpoint."""
    _Checkpoint(checkpoint_id, client).remove()
