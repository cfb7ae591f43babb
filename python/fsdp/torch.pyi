from collections.abc import Callable
from typing import Any

from torch.utils.data import DataLoader as _DataLoader

from . import Tensor

class DataLoader(_DataLoader[Any]): ...

def from_tensor(tensor: Tensor, private: bool = False) -> Any: ...
def install() -> None: ...
def pack(
    collate_fn: Callable[[list[Any]], Any] | None = None, credits: int = 8
) -> Callable[[list[Any]], Any]: ...
