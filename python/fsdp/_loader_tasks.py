"""Pipes by which a data loader gives its workers their tasks."""

import contextlib
import fcntl
import os
import pickle
import queue
import select
import struct
from multiprocessing.connection import Connection, reduce_connection
from multiprocessing.reduction import ForkingPickler

_PIPE_SIZE = 1 << 20  # bytes of tasks that can wait in a pipe
_PAUSE = 0.05  # seconds until a worker with a part of a task looks for the end
_READ_SIZE = 64 << 10  # bytes that are read from it at once
_WORD = struct.Struct("<Q")


def _pickled(thing):
    try:
        return pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
    except Exception:
        # it pickles more types, but is slower
        return bytes(ForkingPickler.dumps(thing))


class Queue:
    """The common part: a queue has no thread that must be joined."""

    def cancel_join_thread(self):
        pass


class _End(Connection):
    """An end of a pipe. If an iterator is in a cycle, Python may finalize its pipes
    before it. A Connection that was finalized does not know that it is closed, so
    close() would close its number again, which another file may have by then."""

    __del__ = Connection.close


ForkingPickler.register(_End, reduce_connection)


class Tasks(Queue):
    """A queue from the trainer to one worker. It sends pickles through a pipe,
    each after a word with its size. The trainer never waits for a full pipe: the
    worker may wait for the trainer to receive its answers."""

    def __init__(self, link, receiver, worker):
        self._link, self._receiver, self._worker = link, receiver, worker
        reader, writer = os.pipe()
        self._reader = _End(reader, writable=False)
        self._writer = _End(writer, readable=False)
        self._unread, self._waiter = bytearray(), None
        self._unsent = bytearray()
        os.set_blocking(writer, False)
        with contextlib.suppress(OSError):  # each user has a limit
            fcntl.fcntl(self._writer.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    def __getstate__(self):
        return {**self.__dict__, "_receiver": None, "_writer": None}

    def put(self, task):
        generation = None
        if task is not None:
            generation = self._receiver.begin_task(self._worker, task)
        data = _pickled((generation, task))
        try:
            self._receiver.send(self, _WORD.pack(len(data)) + data)
        except OSError:
            # Python may have closed the pipe already, if the iterator was in a
            # cycle. The worker reads the end of the pipe, and ends.
            if task is not None:
                raise

    def fileno(self):
        return self._writer.fileno()

    def write(self, data=b""):
        """Write the data after what did not fit before. Return whether everything
        fits; if not, call this again."""
        self._unsent += data
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                del self._unsent[: os.write(self.fileno(), self._unsent)]
        return not self._unsent

    def _next(self):
        """Return the oldest task that has been read, or None."""
        unread = self._unread
        if len(unread) < _WORD.size:
            return None
        end = _WORD.size + _WORD.unpack_from(unread)[0]
        if len(unread) < end:
            return None
        answer = ForkingPickler.loads(unread[_WORD.size : end])
        del unread[:end]
        return answer

    def _read(self, timeout):
        if self._waiter is None:
            if self._writer is not None:
                # the trainer's end; the pipe ends when the trainer dies
                self._writer.close()
            self._waiter = select.poll()
            self._waiter.register(self._reader.fileno(), select.POLLIN)
        if not self._waiter.poll(timeout * 1000):
            raise queue.Empty
        data = os.read(self._reader.fileno(), _READ_SIZE)
        self._unread += data
        return bool(data)

    def get(self, timeout):
        while (answer := self._next()) is None:
            if self._link.done.is_set():
                return None  # The trainer writes no more of this task.
            if self._unread:
                timeout = min(timeout, _PAUSE)
            if not self._read(timeout):
                # torch's watchdog does not notice a trainer that died before it
                # started.
                self._link.done.set()
                return None
        generation, task = answer
        if generation is not None:
            self._link.sender().use(generation)
        return task

    def close(self):
        """Close everything when the workers have ended. torch does not close
        the queue of answers. Its end also ends the thread that may write."""
        self._receiver.close()
        self._reader.close()
        self._writer.close()
