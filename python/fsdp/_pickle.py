"""Functions that restore pickled tensors in another process."""

import errno

from ._default import default
from ._errors import make


def reopen_pickled(name, version):
    """Return the tensor of a name, whose version was pickled."""
    tensor = default().get(name)
    if tensor.version != version:
        raise make(
            errno.ESTALE,
            f"{name} has version {tensor.version} now, and version {version} "
            "was pickled; hold the tensor until it has arrived, or get the name",
        )
    return tensor


def redeem_pickled(ticket):
    """Return a tensor that was pickled without a name."""
    return default().redeem(ticket)
