"""Times are seconds in Python, and milliseconds in libfsdp."""

import errno
import math

from ._errors import make

_MOST = 2**31 - 1


def _convert(seconds):
    if not seconds >= 0:
        raise make(
            errno.EINVAL, f"a time must be 0 or more seconds, or None for no limit, not {seconds}"
        )
    return math.ceil(seconds * 1000)


def seconds_to_ms(seconds):
    """Convert a lifetime. None and 0 mean no limit."""
    return _convert(seconds) if seconds else 0


def milliseconds(timeout):
    """Convert the limit of a wait. None means no limit."""
    return -1 if timeout is None else min(_convert(timeout), _MOST)
