"""Times are seconds in Python, and milliseconds in libfsdp."""

import errno
import math

from ._errors import make

_MOST = 2**31 - 1


def _check(seconds):
    if not seconds >= 0:
        raise make(
            errno.EINVAL, f"a time must be 0 or more seconds, or None for no limit, not {seconds}"
        )


def seconds_to_ms(seconds):
    """Convert a lifetime. None, 0 and infinity mean no limit."""
    if not seconds or seconds == math.inf:
        return 0
    _check(seconds)
    return math.ceil(seconds * 1000)


def milliseconds(timeout):
    """Convert the limit of a wait. None means no limit."""
    if timeout is None:
        return -1
    _check(timeout)
    return math.ceil(min(timeout * 1000, _MOST))
