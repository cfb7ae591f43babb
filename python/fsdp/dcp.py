"""torch.distributed.checkpoint into the memory of the broker.

>>> import torch.distributed.checkpoint as dcp      # doctest: +SKIP
>>> dcp.save(state, storage_writer=fsdp.dcp.Writer("run7"))    # doctest: +SKIP
>>> dcp.load(state, storage_reader=fsdp.dcp.Reader("run7"))    # doctest: +SKIP

The trainer waits for one copy of its memory, and goes on. The checkpoint
outlives it, and the broker's restart; drain() writes it to disk meanwhile.
Each save has bundles of its own, one for each rank, and is found only when
finish() has published the metadata, which names them: one that was not finished
is never found, and the one before stays until then. All ranks are on one node.
"""

import dataclasses
import errno
import io
import os
import pickle
import uuid

import torch
from torch.distributed.checkpoint import StorageReader, StorageWriter
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, StorageMeta
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import WriteResult
from torch.futures import Future

from ._default import default
from ._dtypes import name_of
from ._errors import NotFound, make
from ._load import bytes_of

_ALIGN = 64


def _done(value):
    future = Future()
    future.set_result(value)
    return future


class _Checkpoint:
    """Where a checkpoint of this user is."""

    def __init__(self, checkpoint_id, client):
        text = os.fspath(checkpoint_id)
        if not text or any(p in ("", "meta") or p[:5] == "data." for p in text.split("/")):
            raise make(
                errno.EINVAL,
                f"{text!r} is not the name of a checkpoint; use one such as run7/step100",
            )
        self.id, self.client = text, client or default()
        self._base = f"ckpt.{os.getuid()}/{text}/"

    def bundle_name(self, save_id, rank):
        return f"{self._base}data.{save_id}/{rank}/"

    def publish(self, metadata, mode):
        self.client.put(f"{self._base}meta", pickle.dumps(metadata), mode=mode)

    def metadata(self):
        """That of the last save that was finished."""
        # A pickle is code, so it must be this user's.
        tensor = self.client.get(f"{self._base}meta", trusted_uid=os.getuid())
        return pickle.loads(bytes_of(tensor))

    def bundles(self):
        """The names of all bundles, also of saves that were not finished."""
        entries = self.client.entries(f"{self._base}data.")
        return {entry["bundle"] for entry in entries}

    def sweep(self):
        """Free what no finished save refers to."""
        try:
            used = {bundle for bundle, _ in self.metadata().storage_data.values()}
        except NotFound:
            used = set()
        for name in self.bundles() - used:
            self.client.remove(name)

    def remove(self):
        self.client.remove(f"{self._base}meta")
        self.sweep()


class Writer(StorageWriter):
    """The storage_writer of torch.distributed.checkpoint.save().

    `checkpoint_id` is a name such as "run7" or "run7/step100". To save again
    under it replaces the checkpoint when the new one is complete.
    """

    def __init__(self, checkpoint_id, *, client=None, mode=0):
        super().__init__()
        self._client, self._mode = client, mode
        self._checkpoint = _Checkpoint(checkpoint_id, client)
        self.reset()

    def reset(self, checkpoint_id=None):
        """Begin another save; torch calls it."""
        if checkpoint_id:
            self._checkpoint = _Checkpoint(checkpoint_id, self._client)
        self._save_id = uuid.uuid4().hex[:16]

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if not kwargs.get("use_collectives", True):
            raise make(errno.EINVAL, "fsdp.dcp needs use_collectives=True")

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        # No rank has written yet: what is unfinished is of a save that died.
        self._checkpoint.sweep()
        return [
            dataclasses.replace(
                plan, storage_data=self._checkpoint.bundle_name(self._save_id, rank)
            )
            for rank, plan in enumerate(plans)
        ]

    def write_data(self, plan, planner):
        """Copy this rank's part; when it returns, the trainer may go on."""
        values = [self._resolve(item, planner) for item in plan.items]
        if values:
            self._write(plan.storage_data, values)
        return _done(
            [
                WriteResult(item.index, value.nbytes, (plan.storage_data, str(i)))
                for i, (item, value) in enumerate(zip(plan.items, values))
            ]
        )

    @staticmethod
    def _resolve(item, planner):
        value = planner.resolve_data(item)
        if item.type != WriteItemType.BYTE_IO:
            return value.detach()
        return torch.frombuffer(bytearray(value.getbuffer() or b"\0"), dtype=torch.uint8)

    def _write(self, name, values):
        client = self._checkpoint.client
        size = sum(-(-value.nbytes // _ALIGN) * _ALIGN for value in values)
        with client.stage(name, size=size, mode=self._mode) as stage:
            specs = [
                (str(i), tuple(value.shape), name_of(value.dtype))
                for i, value in enumerate(values)
            ]
            for tensor, value in zip(stage.alloc(specs), values):
                tensor.torch().copy_(value)

    def finish(self, metadata, results):
        """Make the checkpoint one that can be found, and free the one before."""
        metadata.storage_data = {
            result.index: result.storage_data for some in results for result in some
        }
        metadata.storage_meta = self.storage_meta()
        self._checkpoint.publish(metadata, self._mode)
        self._checkpoint.sweep()

    def storage_meta(self):
        return StorageMeta(checkpoint_id=self._checkpoint.id, save_id=self._save_id)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """It is never chosen by a path, only by the caller."""
        return False


class Reader(StorageReader):
    """The storage_reader of torch.distributed.checkpoint.load(): any number of
    ranks reads what any number of ranks saved."""

    def __init__(self, checkpoint_id, *, client=None):
        super().__init__()
        self._client = client
        self._checkpoint = _Checkpoint(checkpoint_id, client)
        self.reset()

    def reset(self, checkpoint_id=None):
        """Begin another load; torch calls it."""
        if checkpoint_id:
            self._checkpoint = _Checkpoint(checkpoint_id, self._client)
        self._places, self._bundles = {}, {}

    def read_metadata(self, *args, **kwargs):
        return self._checkpoint.metadata()

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self._places = metadata.storage_data

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return plans

    def tensor(self, index):
        """The tensor that was saved under an index of the metadata."""
        name, member = self._places[index]
        if name not in self._bundles:
            self._bundles[name] = self._checkpoint.client.bundle(name)
        return self._bundles[name][member]

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
        self._bundles = {}
        return _done(None)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        """It is never chosen by a path, only by the caller."""
        return False


# --- to disk ------------------------------------------------------------------


def _write_bundle(path, file_name, reader, items):
    """One file, as torch's writer makes it: {index: where it is}."""
    places = {}
    with open(os.path.join(path, file_name), "wb") as file:
        for index, is_bytes in items:
            offset, tensor = file.tell(), reader.tensor(index)
            if is_bytes:
                file.write(bytes_of(tensor))
            else:
                torch.save(tensor.torch(), file)
            places[index] = _StorageInfo(file_name, offset, file.tell() - offset)
        file.flush()
        os.fsync(file.fileno())
    return places


def _write_metadata(path, metadata):
    temporary = os.path.join(path, ".metadata.tmp")
    with open(temporary, "wb") as file:
        pickle.dump(metadata, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, os.path.join(path, ".metadata"))
    directory = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def drain(checkpoint_id, path, *, client=None):
    """Write a checkpoint to a directory, from which torch's own
    FileSystemReader loads it; in any process, while the trainer goes on.

    The directory is a checkpoint when it is complete, and not before.
    """
    reader = Reader(checkpoint_id, client=client)
    metadata = reader.read_metadata()
    reader.set_up_storage_reader(metadata, True)
    by_bundle = {}
    for index, (name, _) in metadata.storage_data.items():
        kind = metadata.state_dict_metadata[index.fqn]
        is_bytes = isinstance(kind, BytesStorageMetadata)
        by_bundle.setdefault(name, []).append((index, is_bytes))
    os.makedirs(path, exist_ok=True)
    places = {}
    for i, items in enumerate(by_bundle.values()):
        places.update(_write_bundle(path, f"__{i}_0.distcp", reader, items))
    metadata.storage_data = places
    _write_metadata(path, metadata)


def remove(checkpoint_id, *, client=None):
    """Free a checkpoint."""
    _Checkpoint(checkpoint_id, client).remove()
