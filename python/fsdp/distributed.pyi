import torch.distributed as _dist

from . import Aborted

NAME: str

class BackendError(Aborted, _dist.DistBackendError): ...
class ProcessGroup(_dist.ProcessGroup): ...

def register() -> None: ...
