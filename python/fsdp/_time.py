"""Times are seconds in Python, and milliseconds in libfsdp."""

import math

_MOST = 2**31 - 1


def seconds_to_ms(seconds):
    """A lifetime: None and 0 are no limit."""
    return math.ceil(seconds * 1000) if seconds else 0


def milliseconds(timeout):
    """A wait: None is for ever."""
    return -1 if timeout is None else min(math.ceil(timeout * 1000), _MOST)
