"""Names of the channels by which workers of data loaders send batches."""

import os


def new_name():
    """One that nobody uses. Its first component is this user's alone, since a
    first component has one owner."""
    return f"loader.{os.getuid()}/{os.getpid()}.{os.urandom(8).hex()}"
