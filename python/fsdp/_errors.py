"""Exceptions: each is an fsdp.Error, and also Python's own class for the case."""

import errno
import os


class Error(Exception):
    """A call of fsdp failed. `errno` tells the kind; the text is a sentence
    with the object, the cause and the remedy."""

    errno = 0

    def __str__(self):
        # KeyError would show the repr of the text, and OSError could add a
        # number.
        return str(self.args[0]) if self.args else ""


class NotFound(Error, KeyError):
    """There is no such name, member or ticket (ENOENT)."""


class Exists(Error, FileExistsError):
    """The name is taken (EEXIST)."""


class Timeout(Error, TimeoutError):
    """It did not happen in time (ETIMEDOUT)."""


class NoRoom(Error, MemoryError):
    """Memory, a quota or a budget is used up (ENOMEM, EDQUOT)."""


class Denied(Error, PermissionError):
    """The user may not do this (EACCES, EPERM)."""


class Disconnected(Error, ConnectionError):
    """No broker answers (ECONNREFUSED, ECONNRESET)."""


class Aborted(Error, ConnectionAbortedError):
    """A communicator ended (ECONNABORTED)."""


class Gone(Error, ReferenceError):
    """This version was freed or replaced, or its writer died before it was
    complete (ESTALE, EOWNERDEAD)."""


class ProducerDied(Gone):
    """A producer of the channel died; all objects that it had sent are received
    (EOWNERDEAD)."""


class Ended(Error, EOFError):
    """All producers of the channel have ended, and all objects are received
    (ENODATA)."""


class Lagged(Error, ReferenceError):
    """The channel has cut this consumer, which kept an item for too long
    (EOVERFLOW)."""


class Left(Error, BrokenPipeError):
    """All consumers of the channel have gone (EPIPE)."""


class Invalid(Error, ValueError):
    """An argument is wrong, or the object is closed or not held (EINVAL,
    ERANGE, EOVERFLOW, ENAMETOOLONG)."""


_CLASSES = {
    errno.ENOENT: NotFound,
    errno.EEXIST: Exists,
    errno.ETIMEDOUT: Timeout,
    errno.ENOMEM: NoRoom,
    errno.EDQUOT: NoRoom,
    errno.EACCES: Denied,
    errno.EPERM: Denied,
    errno.ECONNREFUSED: Disconnected,
    errno.ECONNRESET: Disconnected,
    errno.ECONNABORTED: Aborted,
    errno.ESTALE: Gone,
    errno.EOWNERDEAD: Gone,
    errno.ENODATA: Ended,
    errno.EPIPE: Left,
    errno.EINVAL: Invalid,
    errno.ERANGE: Invalid,
    errno.EOVERFLOW: Invalid,  # Channel.get() makes Lagged of it
    errno.ENAMETOOLONG: Invalid,
}


def make(number, sentence):
    """Return the exception for an errno. _fsdp calls this."""
    error = _CLASSES.get(number, Error)(sentence or os.strerror(number))
    error.errno = number
    return error
