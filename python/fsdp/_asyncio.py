"""aget(), abundle() and aput() wait on descriptors of libfsdp, without threads.

A connection has one descriptor for all pending gets, and a channel has one for
each of its ends.
"""

import asyncio
import collections
import contextlib
import os

from ._bundle import Bundle
from ._errors import Timeout


class _Waits:
    """The pending gets of one connection in one event loop."""

    def __init__(self, client, loop):
        self._client, self._loop, self._fd = client, loop, client._fd()
        self._pending = {}

    def add(self, pending):
        future = self._loop.create_future()
        if not self._pending:
            self._loop.add_reader(self._fd, self._look)
        self._pending[future] = pending
        return future

    def drop(self, future):
        pending = self._pending.pop(future, None)
        if pending is not None:
            pending.cancel()
        self._end_if_idle()

    def _end_if_idle(self):
        if not self._pending and self._client._waits.get(self._loop) is self:
            del self._client._waits[self._loop]
            self._loop.remove_reader(self._fd)

    # The descriptor does not tell which get is complete, so this tries all.
    def _look(self):
        for future, pending in list(self._pending.items()):
            try:
                got = pending.end()
            except Exception as error:
                result, value = future.set_exception, error
            else:
                if got is None:
                    continue
                result, value = future.set_result, got
            del self._pending[future]
            if not future.done():
                result(value)
        self._end_if_idle()


async def _end(client, pending):
    """Return the result of pending.end(), when the get is complete."""
    got = pending.end()
    if got is not None:
        return got
    loop = asyncio.get_running_loop()
    waits = client._waits.get(loop)
    if waits is None:
        waits = client._waits[loop] = _Waits(client, loop)
    future = waits.add(pending)
    try:
        return await future
    finally:
        waits.drop(future)


async def aget(client, name, options):
    """Implements Client.aget()."""
    names = [name] if isinstance(name, str) else list(name)
    tensors = await _end(client, client._begin(names, **options))
    return tensors[0] if isinstance(name, str) else tensors


async def abundle(client, name, options):
    """Implements Client.abundle()."""
    members = await _end(client, client._begin_bundle(name, **options))
    return Bundle(client, name, *members)


# --- channels -----------------------------------------------------------------


class _Turns:
    """The tasks that wait at one end of a channel in one event loop."""

    def __init__(self, channel, loop):
        self._channel, self._loop = channel, loop
        # This is a copy, since the channel may be closed while tasks wait.
        self._fd = os.dup(channel.fileno())
        self._n, self._futures = 0, collections.deque()
        loop.add_reader(self._fd, self._wake)

    # The descriptor stays readable until a task has found nothing, so each
    # waiting task gets its turn.
    def _wake(self):
        if self._futures:
            future = self._futures.popleft()
            if not future.done():
                future.set_result(None)

    def wake_all(self):
        while self._futures:
            self._wake()

    async def wait(self):
        """Wait until there may be something for this task."""
        self._n += 1
        future = self._loop.create_future()
        self._futures.append(future)
        try:
            await future
        finally:
            self._n -= 1
            if not self._n:
                self._end()

    def _end(self):
        del self._channel._waits[self._loop]
        self._loop.remove_reader(self._fd)
        os.close(self._fd)


async def repeat(channel, call, timeout):
    """Call call() until it does not raise Timeout, and return its result.

    Nothing is awaited after that, so a task that is cancelled loses no item.
    """
    loop = asyncio.get_running_loop()
    end = None if timeout is None else loop.time() + timeout
    while True:
        try:
            return call()
        except Timeout:
            if end is not None and loop.time() >= end:
                raise
        turns = channel._waits.get(loop)
        if turns is None:
            turns = channel._waits[loop] = _Turns(channel, loop)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(end):
                await turns.wait()


def wake(channel):
    """Let the waiting tasks of all loops find that the channel is closed."""
    for loop, turns in list(channel._waits.items()):
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(turns.wake_all)
