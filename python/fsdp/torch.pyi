from collections.abc import Callable
from typing import Any, TypeVar

from torch.utils.data import DataLoader as _DataLoader
from torch.utils.data import Dataset as _Dataset

from . import Client, Tensor

_T_co = TypeVar("_T_co", covariant=True)

class DataLoader(_DataLoader[_T_co]):
    def __init__(
        self,
        dataset: _Dataset[_T_co],
        *args: Any,
        client: Client | None = None,
        **options: Any,
    ) -> None: ...
    def state_dict(self) -> dict[str, Any]: ...
    def load_state_dict(self, state_dict: dict[str, Any]) -> None: ...

def from_tensor(tensor: Tensor, private: bool = False) -> Any: ...
def install() -> None: ...
def pack(
    collate_fn: Callable[[list[Any]], Any] | None = None, credits: int = 8
) -> Callable[[list[Any]], Any]: ...
def to(batch: Any, device: Any, non_blocking: bool = True) -> Any: ...
