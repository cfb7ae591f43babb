"""aget(): waits on the descriptor that libfsdp has for all pending gets."""

import asyncio


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
        if not self._pending and self._client._waits.pop(self._loop, None):
            self._loop.remove_reader(self._fd)

    # The descriptor does not say which get is complete.
    def _look(self):
        for future, pending in list(self._pending.items()):
            try:
                tensors = pending.end()
            except Exception as error:
                result, value = future.set_exception, error
            else:
                if tensors is None:
                    continue
                result, value = future.set_result, tensors
            del self._pending[future]
            if not future.done():
                result(value)
        self._end_if_idle()


async def aget(client, name, options):
    """Client.aget()."""
    names = [name] if isinstance(name, str) else list(name)
    pending = client._begin(names, **options)
    tensors = pending.end()
    if tensors is None:
        loop = asyncio.get_running_loop()
        waits = client._waits.get(loop)
        if waits is None:
            waits = client._waits[loop] = _Waits(client, loop)
        future = waits.add(pending)
        try:
            tensors = await future
        finally:
            waits.drop(future)
    return tensors[0] if isinstance(name, str) else tensors
