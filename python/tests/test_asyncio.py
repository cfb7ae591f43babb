import asyncio
import threading

import numpy as np
import pytest

import fsdp
from conftest import holds, until


def test_a_known_name_is_there_at_once(c):
    c.put("a/x", np.arange(3))

    async def main():
        return (await c.aget("a/x")).numpy().sum()

    assert asyncio.run(main()) == 3


def test_waits_do_not_stop_the_loop(c):
    async def main():
        waits = [asyncio.ensure_future(c.aget(f"a/{i}", timeout=20)) for i in range(5)]
        await asyncio.sleep(0)
        for i in reversed(range(5)):
            # The loop runs while all of them wait.
            await asyncio.to_thread(c.put, f"a/{i}", np.array([i]))
        return [int(t.numpy()[0]) for t in await asyncio.gather(*waits)]

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert not c._waits


def test_a_list_comes_whole(c):
    async def main():
        wait = asyncio.ensure_future(c.aget(["a/x", "a/y"], timeout=20))
        await asyncio.to_thread(c.put, "a/x", b"x")
        await asyncio.to_thread(c.put, "a/y", b"y")
        return [t.name for t in await wait]

    assert asyncio.run(main()) == ["a/x", "a/y"]


def test_errors_are_raised_in_the_task(c):
    async def main():
        with pytest.raises(fsdp.NotFound):
            await c.aget("a/none")
        with pytest.raises(fsdp.Timeout):
            await c.aget("a/none", timeout=0.01)

    asyncio.run(main())
    assert not c._waits


def test_a_cancelled_task_leaves_no_hold(c):
    async def main():
        wait = asyncio.ensure_future(c.aget("a/x", timeout=20))
        await asyncio.sleep(0.01)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        await asyncio.to_thread(c.put, "a/x", b"x")

    asyncio.run(main())
    assert not c._waits
    until(lambda: holds(c, "a/x") == 0, "what came too late is released")


def test_loops_of_several_threads_share_a_connection(c):
    results = []

    def work(i):
        results.append(asyncio.run(c.aget(f"a/{i}", timeout=20)).numpy()[0])

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for i in range(3):
        c.put(f"a/{i}", np.array([i]))
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2]
    assert not c._waits
