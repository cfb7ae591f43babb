import torch.distributed as _dist

from . import Aborted

NAME: str

class BackendError(Aborted, _dist.DistBackendError): ...  # type: ignore[misc]
class ProcessGroup(_dist.ProcessGroup): ...

def register() -> None: ...
