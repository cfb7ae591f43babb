"""Names of the channels by which workers of data loaders send batches."""

import os


def new_name():
    """Return an unused name. The first component of a name has one owner, so
    this one is only used by the user of this process."""
    return f"loader.{os.getuid()}/{os.getpid()}.{os.urandom(8).hex()}"
