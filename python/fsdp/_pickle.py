"""Functions that restore pickled tensors in another process."""

import errno

from ._default import default
from ._errors import make


def reopen_pickled(name, version, identity):
    """Return the tensor of a name, if it is the one that was pickled. Versions
    begin again when a name is removed, so they do not tell that."""
    tensor = default().get(name)
    if tensor._id != identity:
        raise make(
            errno.ESTALE,
            f"{name} shows another tensor now, of version {tensor.version}, and "
            f"that of version {version} was pickled; hold the tensor until it "
            "has arrived, or get the name",
        )
    return tensor


def redeem_pickled(ticket):
    """Return a tensor that was pickled without a name."""
    return default().redeem(ticket)
