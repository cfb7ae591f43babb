"""The calls of a communicator, which run one after another, and torch's objects
for them."""

import collections
import contextlib
import queue
import threading

import torch.distributed as dist
from torch.futures import Future

from ._errors import Aborted, Error


class BackendError(Aborted, dist.DistBackendError):
    """A call failed, for example because a rank died. The text names the rank."""


def error_of(error):
    """Return the error that the caller sees, which has torch's class and fsdp's."""
    if not isinstance(error, Error) or isinstance(error, (ValueError, TimeoutError)):
        return error
    said = BackendError(str(error))
    said.errno = error.errno
    return said


class Work(dist.Work):
    """A call that was made. It is complete when `_end()` has been called."""

    _tell_lock = threading.Lock()

    def __init__(self, tensors, source=-1):
        super().__init__()
        self._tensors, self._source = tensors, source
        self._error, self._events = None, []
        self._is_done = False
        self._open = threading.Lock()  # held until the call is complete
        self._open.acquire()

    def _end(self, error=None):
        """Complete the call and wake all waiters. _tell() must follow."""
        self._error = error_of(error) if error else None
        self._is_done = True
        self._open.release()

    def _tell(self):
        """Complete the futures. Their callbacks may make further calls."""
        with self._tell_lock:
            events, self._events = self._events, []
        for event in events:
            event.set_result(None)

    def _await(self, seconds):
        """Wait until the call is complete; None waits without limit. Subclasses
        may do the work meanwhile."""
        if not self._open.acquire(timeout=-1 if seconds is None else seconds):
            raise BackendError(f"the call was not complete within {seconds:g} s")
        self._open.release()

    # --- what torch calls -----------------------------------------------------

    def wait(self, timeout=None):
        if not self._is_done:
            # In torch, 0 means no time-out.
            seconds = timeout.total_seconds() if timeout else None
            self._await(seconds)
        if self._error:
            raise self._error
        return True

    def synchronize(self):
        self.wait()

    def is_completed(self):
        return self._is_done

    def is_success(self):
        return self._is_done and not self._error

    def exception(self):
        return self._error

    def result(self):
        return self._tensors

    def source_rank(self):
        return self._source

    _source_rank = source_rank

    def _value(self, _):
        if self._error:
            raise self._error
        return self._tensors

    def get_future(self):
        event = Future()
        # An error that is raised in a callback also reaches torch's C++ code.
        future = event.then(self._value)
        with self._tell_lock:
            self._events.append(event)
        if self._is_done:
            self._tell()
        return future


class _Call(Work):
    """A collective: a function that runs when it is its turn."""

    def __init__(self, line, run, tensors):
        super().__init__(tensors)
        self._line, self._run = line, run

    def _execute(self):
        error = BackendError("the call was interrupted")
        try:
            self._run()
            error = None
        except Exception as caught:
            error = caught
        finally:
            self._run = None  # this also frees the objects that it keeps
            self._end(error)

    def _await(self, seconds):
        # A caller that waits without limit can do the work itself.
        if seconds is not None or not self._line.run(self):
            super()._await(seconds)


class Line:
    """The calls of one communicator. They are run by a thread, or by a caller
    that waits for one."""

    def __init__(self):
        self._calls = collections.deque()
        self._turn = threading.Lock()
        self._bell = queue.SimpleQueue()
        self._thread = None

    def add(self, run, tensors, is_async):
        """Add a call after all others, and return its Work. If the caller would
        wait anyway, the call is already complete."""
        call = _Call(self, run, tensors)
        self._calls.append(call)
        if is_async or not self.run(call):
            self._wake()
        return call

    def run(self, last):
        """Run all calls up to this one. Return False if another thread runs them."""
        if not self._turn.acquire(blocking=False):
            return False
        ran = []
        try:
            while not last._is_done:
                ran.append(self._calls.popleft())
                ran[-1]._execute()
        finally:
            self._turn.release()
            for call in ran:
                call._tell()
        return True

    def _wake(self):
        if self._thread is None:
            self._thread = threading.Thread(
                target=self._serve, name="fsdpd collectives", daemon=True
            )
            self._thread.start()
        self._bell.put(True)

    def _serve(self):
        while self._bell.get():
            with contextlib.suppress(IndexError):  # another thread ran it
                self._serve_one()

    def _serve_one(self):
        with self._turn:
            call = self._calls.popleft()
            call._execute()
        call._tell()

    def is_busy(self):
        """Return whether the thread has calls that are not complete."""
        return self._thread and (self._calls or self._turn.locked())

    def close(self):
        """Stop the thread after the last call."""
        if self._thread:
            self._bell.put(False)
            self._thread.join()
