"""Messages between two ranks. They have a communicator of their own, and a
thread that continues messages for which no caller waits."""

import threading
import time

from ._work import BackendError, Work, error_of

_SLICE = 0.001  # seconds for which a thread uses the communicator


class _Message(Work):
    def __init__(self, mail, tensors, late):
        super().__init__(tensors)
        self._mail, self._late = mail, late

    def _await(self, seconds):
        seconds = self._mail.seconds if seconds is None else seconds
        end = time.monotonic() + seconds
        while not self._is_done and time.monotonic() < end:
            self._mail.carry_on(self)
        if not self._is_done:
            raise BackendError(f"{self._late} within {seconds:g} s")


class Mail:
    """Sends and receives of one communicator."""

    def __init__(self, comm, seconds):
        self._comm, self.seconds = comm, seconds
        self._open = {}  # message: (job, transfer)
        # A thread that has had its turn lets other waiting threads go first.
        self._next, self._turn = threading.Lock(), threading.Lock()
        self._is_open = threading.Event()
        self._thread, self._is_closed = None, False

    def _enter(self):
        with self._next:
            self._turn.acquire()

    def add(self, job, tensors, late):
        """Begin the transfer of a job, and return its Work. `late` begins the
        error of a time-out."""
        message = _Message(self, tensors, late)
        self._enter()
        try:
            self._open[message] = job, job.run(self._comm)
            self._wake()
        except Exception as error:
            raise error_of(error)
        finally:
            self._turn.release()
        return message

    def carry_on(self, message):
        """Wait a little for this message. All others make progress, too."""
        self._enter()
        try:
            if message._is_done:
                return
            self._carry_on(message)
        finally:
            self._turn.release()
        message._tell()

    def _carry_on(self, message):
        job, transfer = self._open[message]
        try:
            if not transfer.wait(_SLICE):
                return
            message._source = transfer.rank
            job.back()
            message._end()
        except Exception as error:
            message._end(error)
        del self._open[message]

    def _wake(self):
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="fsdpd messages", daemon=True
            )
            self._thread.start()
        self._is_open.set()

    def _serve(self):
        while self._is_open.wait() and not self._is_closed:
            self._is_open.clear()
            # Callers wait for most messages at once, so the thread is not
            # needed then.
            time.sleep(_SLICE)
            while messages := list(self._open):
                for message in messages:
                    self.carry_on(message)

    def close(self):
        """Stop the thread. Messages that are not complete stay so."""
        self._is_closed = True
        if self._thread:
            self._comm.abort()
            self._is_open.set()
            self._thread.join()

    def leave(self):
        self._comm.leave()

    def abort(self):
        self._comm.abort()
