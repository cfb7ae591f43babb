import os
from collections.abc import Mapping, Sequence
from typing import Any, Self

from . import Bundle, Client

_Path = str | os.PathLike[str]

def name_of_files(paths: Sequence[_Path]) -> str: ...
def name_of_file(path: _Path) -> str: ...

class safe_open:
    def __init__(
        self,
        filename: _Path,
        framework: str,
        device: Any = "cpu",
        *,
        prefix: str | None = None,
        client: Client | None = None,
        progress: bool = False,
    ) -> None: ...
    @property
    def bundle(self) -> Bundle: ...
    def keys(self) -> list[str]: ...
    def offset_keys(self) -> list[str]: ...
    def metadata(self) -> dict[str, str] | None: ...
    def get_tensor(self, name: str) -> Any: ...
    def get_slice(self, name: str) -> Any: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

def load_file(
    filename: _Path,
    device: Any = "cpu",
    *,
    prefix: str | None = None,
    client: Client | None = None,
    framework: str = "pt",
    progress: bool = False,
) -> dict[str, Any]: ...
def save_file(
    tensors: Mapping[str, Any],
    filename: _Path,
    metadata: Mapping[str, str] | None = None,
) -> None: ...
