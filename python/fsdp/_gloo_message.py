"""Messages between nodes, which gloo carries: waits that Ctrl-C ends."""

import contextlib
import datetime
import os
import queue
import threading

from ._work import Work

_PATIENCE = 1  # seconds for gloo to end a call after its group was stopped


class _Helper:
    """A thread that waits in C++ for the main thread, whose own wait Ctrl-C ends."""

    def __init__(self):
        self._jobs = queue.SimpleQueue()
        threading.Thread(
            target=self._serve, name="fsdpd messages of nodes", daemon=True
        ).start()

    def _serve(self):
        while True:
            self._do(*self._jobs.get())

    def _do(self, call, done):
        try:
            call()
            done.put(None)
        except Exception as error:
            done.put(error)

    def run(self, call, stop):
        """Have the thread run call(). If the wait for that is interrupted, stop()
        must end the call. If it does not, the thread is not used again, and keeps
        the memory of the call."""
        done = queue.SimpleQueue()
        self._jobs.put((call, done))
        try:
            error = done.get()
        except BaseException:
            stop()
            with contextlib.suppress(queue.Empty):
                done.get(timeout=_PATIENCE)
                _idle.append(self)
            raise
        _idle.append(self)
        if error:
            raise error


# These threads have no job. There may be several, since a signal handler can wait
# for a message while the main thread waits for another one.
_idle = []
os.register_at_fork(after_in_child=_idle.clear)  # A child has no threads.


def _run(call, stop):
    if threading.current_thread() is not threading.main_thread():
        return call()  # Signals are not handled in this thread.
    helper = _idle.pop() if _idle else _Helper()
    return helper.run(call, stop)


class GlooMessage(Work):
    """A message that is under way as `work` of gloo, to or from a rank. If `rank` is
    None, gloo knows it when the message has come."""

    def __init__(self, comm, work, tensors, rank):
        super().__init__(tensors, rank)
        self._comm, self._work = comm, work
        self._waiting = threading.Lock()  # gloo allows one thread to wait.

    def _wait(self, work, *limit):
        work.wait(*limit)
        if self._source is None:
            self._source = work.source_rank()

    def _await(self, seconds):
        limit = () if seconds is None else (datetime.timedelta(seconds=seconds),)
        with self._waiting:
            if self._is_done:
                return
            error = RuntimeError("the wait for the message was interrupted")
            work = self._work
            try:
                _run(lambda: self._wait(work, *limit), self._comm.stop)
                error = None
            except Exception as caught:
                error = caught
            finally:
                self._work = None
                self._end(error)
        self._tell()

    def get_future(self):
        raise RuntimeError("a message between nodes has no future; wait() for it")
