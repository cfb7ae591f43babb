import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Self, overload

import numpy.typing as npt

__version__: str

_Path = str | os.PathLike[str]
DTYPES: dict[str, int]

__all__ = [
    "Aborted",
    "Bundle",
    "Channel",
    "Client",
    "DTYPES",
    "Denied",
    "Disconnected",
    "Ended",
    "Error",
    "Exists",
    "Gone",
    "Invalid",
    "Left",
    "NoRoom",
    "NotFound",
    "ProducerDied",
    "Stage",
    "Tensor",
    "Timeout",
    "connect",
    "default",
    "load_once",
    "plan",
    "redeem",
]

class Error(Exception):
    errno: int

class NotFound(Error, KeyError): ...
class Exists(Error, FileExistsError): ...  # type: ignore[misc]
class Timeout(Error, TimeoutError): ...  # type: ignore[misc]
class NoRoom(Error, MemoryError): ...
class Denied(Error, PermissionError): ...  # type: ignore[misc]
class Disconnected(Error, ConnectionError): ...  # type: ignore[misc]
class Aborted(Error, ConnectionAbortedError): ...  # type: ignore[misc]
class Gone(Error, ReferenceError): ...
class ProducerDied(Gone): ...
class Ended(Error, EOFError): ...
class Left(Error, BrokenPipeError): ...  # type: ignore[misc]
class Invalid(Error, ValueError): ...

class Tensor:
    @property
    def shape(self) -> tuple[int, ...]: ...
    @property
    def strides(self) -> tuple[int, ...]: ...
    @property
    def dtype(self) -> str: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def name(self) -> str | None: ...
    @property
    def version(self) -> int: ...
    @property
    def device(self) -> str: ...
    @property
    def readonly(self) -> bool: ...
    @property
    def tainted(self) -> bool: ...
    @property
    def held(self) -> bool: ...
    def hold(self) -> None: ...
    def release(self) -> None: ...
    def release_on(self, stream: int, /) -> None: ...
    def copy_from(self, source: Any, /) -> None: ...
    def publish(
        self,
        name: str | None = None,
        *,
        replace: bool = False,
        evictable: bool = False,
        tied: bool = False,
        ttl: float | None = None,
        stream: int | None = None,
    ) -> int: ...
    def ticket(self, uses: int = 1, ttl: float = 60) -> bytes: ...
    def view(
        self,
        shape: Sequence[int],
        dtype: Any = None,
        strides: Sequence[int] | None = None,
        offset: int = 0,
    ) -> Tensor: ...
    def wait(self, stream: int | None = None, timeout: float | None = None) -> None: ...
    def numpy(self, *, private: bool = False) -> npt.NDArray[Any]: ...
    def torch(self, *, private: bool = False) -> Any: ...
    def __array__(
        self, dtype: npt.DTypeLike | None = None, copy: bool | None = None
    ) -> npt.NDArray[Any]: ...
    def __buffer__(self, flags: int, /) -> memoryview: ...
    def __dlpack__(
        self,
        *,
        stream: int | None = None,
        max_version: tuple[int, int] | None = None,
        dl_device: tuple[int, int] | None = None,
        copy: bool | None = None,
    ) -> Any: ...
    def __dlpack_device__(self) -> tuple[int, int]: ...
    def __len__(self) -> int: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *args: object) -> None: ...
    def __copy__(self) -> Self: ...

class Stage:
    name: str
    version: int | None
    metadata: dict[str, str]
    @overload
    def alloc(
        self, name: str, shape: int | Sequence[int], dtype: Any
    ) -> Tensor: ...
    @overload
    def alloc(
        self,
        name: Iterable[tuple[str, int | Sequence[int], Any]],
        shape: None = None,
        dtype: None = None,
    ) -> list[Tensor]: ...
    def put(self, name: str, array: Any) -> Tensor: ...
    def commit(self) -> int: ...
    def abort(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None: ...

class Bundle(Mapping[str, Tensor]):
    name: str
    version: int
    @property
    def metadata(self) -> dict[str, str]: ...
    @property
    def nbytes(self) -> int: ...
    @property
    def stale(self) -> bool: ...
    def state_dict(self, *, private: bool = False) -> dict[str, Any]: ...
    def __getitem__(self, name: str) -> Tensor: ...
    def __iter__(self) -> Iterator[str]: ...
    def __len__(self) -> int: ...

class Channel:
    name: str
    role: str
    def __init__(self, port: Any, name: str, role: str) -> None: ...
    def put(self, thing: Any, timeout: float | None = None) -> None: ...
    def get(self, timeout: float | None = None) -> Any: ...
    def end(self) -> None: ...
    def info(self) -> dict[str, Any]: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def __iter__(self) -> Self: ...
    def __next__(self) -> Any: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

class Client:
    def __init__(
        self, path: str | os.PathLike[str] | None = None, budget: int = 0
    ) -> None: ...
    @property
    def closed(self) -> bool: ...
    def close(self) -> None: ...
    def ping(self) -> None: ...
    @overload
    def alloc(
        self,
        shape: int | Sequence[int],
        dtype: Any,
        *,
        device: str | None = None,
        mode: int = 0,
        gid: int | None = None,
        timeout: float | None = None,
    ) -> Tensor: ...
    @overload
    def alloc(
        self,
        shape: Sequence[tuple[int | Sequence[int], Any]],
        dtype: None = None,
        *,
        device: str | None = None,
        mode: int = 0,
        gid: int | None = None,
        timeout: float | None = None,
    ) -> list[Tensor]: ...
    def put(
        self,
        name: str | None,
        array: Any,
        *,
        replace: bool = True,
        evictable: bool = False,
        tied: bool = False,
        ttl: float | None = None,
        device: str | None = None,
        mode: int = 0,
        timeout: float | None = None,
    ) -> Tensor: ...
    @overload
    def get(  # type: ignore[overload-overlap]
        self,
        name: str,
        *,
        timeout: float | None = 0,
        stream: int | None = None,
        trusted_uid: int | None = None,
        newer_than: int = 0,
        tainted: bool = False,
    ) -> Tensor: ...
    @overload
    def get(
        self,
        name: Iterable[str],
        *,
        timeout: float | None = 0,
        stream: int | None = None,
        trusted_uid: int | None = None,
        newer_than: int = 0,
        tainted: bool = False,
    ) -> list[Tensor]: ...
    def stage(
        self,
        name: str,
        *,
        replace: bool = False,
        must_exist: bool = False,
        tied: bool = False,
        ttl: float | None = None,
        device: str | None = None,
        mode: int = 0,
        gid: int | None = None,
        size: int = 0,
        once: bool = False,
        timeout: float | None = None,
        keep: int = 1,
    ) -> Stage: ...
    def bundle(self, name: str, **options: Any) -> Bundle: ...
    @overload
    async def aget(self, name: str, **options: Any) -> Tensor: ...
    @overload
    async def aget(self, name: Iterable[str], **options: Any) -> list[Tensor]: ...
    def redeem(self, ticket: bytes) -> Tensor: ...
    def channel(
        self,
        name: str,
        role: str = "consumer",
        *,
        capacity: int = 0,
        credits: int = 8,
        mode: str = "queue",
        access: int = 0,
        timeout: float | None = None,
    ) -> Channel: ...
    def remove(self, names: str | Iterable[str]) -> None: ...
    def names(self, prefix: str | None = None) -> list[str]: ...
    def entries(self, prefix: str | None = None) -> list[dict[str, Any]]: ...
    def who(self, name: str) -> list[dict[str, Any]]: ...
    def status(self) -> dict[str, Any]: ...
    def __getitem__(self, name: str) -> Tensor: ...
    def __contains__(self, name: str) -> bool: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...

def connect(
    path: str | os.PathLike[str] | None = None, budget: int = 0
) -> Client: ...
def default(path: str | None = None) -> Client: ...
def load_once(
    path: _Path | Sequence[_Path],
    name: str,
    *,
    client: Client | None = None,
    timeout: float | None = None,
    mode: int = 0,
    gid: int | None = None,
) -> Bundle: ...
def redeem(ticket: bytes) -> Tensor: ...
def plan(
    graph: dict[str, Any],
    *,
    mode: str | None = None,
    gather_mode: str | None = None,
    reduce_mode: str | None = None,
    cap_mb: float | Sequence[float] | None = None,
    gather_cap_mb: float | Sequence[float] | None = None,
    reduce_cap_mb: float | Sequence[float] | None = None,
    faithful: bool = False,
) -> dict[str, Any]: ...
