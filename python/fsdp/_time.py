"""Times are seconds in Python, and milliseconds in libfsdp."""

import math

_MOST = 2**31 - 1


def seconds_to_ms(seconds):
    """Convert a lifetime. None and 0 mean no limit."""
    return math.ceil(seconds * 1000) if seconds else 0


def milliseconds(timeout):
    """Convert the limit of a wait. None means no limit."""
    return -1 if timeout is None else min(math.ceil(timeout * 1000), _MOST)
