from collections.abc import Mapping
from typing import Any

def from_fx(
    graph: Any, *, group_sizes: Mapping[str, int] | None = None
) -> dict[str, Any]: ...
