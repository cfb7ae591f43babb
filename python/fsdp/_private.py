"""Memory that shows a tensor, and that only this process changes."""

import errno

from ._errors import Error
from ._fsdp import Private

# Bytes. It takes longer to ask the broker for memory than to copy less.
_LARGE = 1 << 20


def memory_of(tensor):
    """Its elements, copied on write; None: they are to be copied at once."""
    if tensor.nbytes < _LARGE:
        return None
    try:
        return Private(tensor)
    except Error as error:
        if error.errno != errno.EOPNOTSUPP:
            raise
        return None
