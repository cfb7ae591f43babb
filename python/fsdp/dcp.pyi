import os
from typing import Any

from torch.distributed.checkpoint import StorageReader, StorageWriter

from . import Client

_Path = str | os.PathLike[str]

class Writer(StorageWriter):
    def __init__(
        self, checkpoint_id: _Path, *, client: Client | None = None, mode: int = 0
    ) -> None: ...

class Reader(StorageReader):
    def __init__(self, checkpoint_id: _Path, *, client: Client | None = None) -> None: ...

def drain(checkpoint_id: _Path, path: _Path, *, client: Client | None = None) -> None: ...
def remove(checkpoint_id: _Path, *, client: Client | None = None) -> None: ...
