import asyncio
import os
import select
import signal
import threading

import numpy as np
import pytest

import fsdp
from conftest import PATIENCE, holds, start, until


def test_a_cached_name_is_returned_at_once(c):
    c.put("a/x", np.arange(3))

    async def main():
        return (await c.aget("a/x")).numpy().sum()

    assert asyncio.run(main()) == 3


def test_waits_do_not_block_the_loop(c):
    async def main():
        waits = [asyncio.ensure_future(c.aget(f"a/{i}", timeout=20)) for i in range(5)]
        await asyncio.sleep(0)
        for i in reversed(range(5)):
            # The loop must run while all five gets wait.
            await asyncio.to_thread(c.put, f"a/{i}", np.array([i]))
        return [int(t.numpy()[0]) for t in await asyncio.gather(*waits)]

    assert asyncio.run(main()) == [0, 1, 2, 3, 4]
    assert not c._waits


def test_a_list_of_names_is_awaited_completely(c):
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


# --- bundles ------------------------------------------------------------------


def commit(c, value):
    with c.stage("m/", replace=True) as stage:
        stage.metadata["value"] = str(value)
        stage.put("w", np.array([value]))


def test_a_bundle_is_awaited_with_its_metadata(c):
    async def main():
        wait = asyncio.ensure_future(c.abundle("m/", timeout=PATIENCE))
        await asyncio.sleep(0)
        assert not wait.done()
        await asyncio.to_thread(commit, c, 7)
        return await wait

    bundle = asyncio.run(main())
    assert (bundle.name, bundle.version, list(bundle)) == ("m/", 1, ["w"])
    assert bundle.metadata == {"value": "7"} and not bundle.stale
    assert bundle["w"].numpy().tolist() == [7]
    assert not c._waits


def test_an_existing_bundle_is_returned_and_a_missing_one_is_an_error(c):
    commit(c, 1)
    assert asyncio.run(c.abundle("m/"))["w"].numpy().tolist() == [1]
    for name, options, error in (
        ("none/", {}, fsdp.NotFound),
        ("none/", {"timeout": 0.01}, fsdp.Timeout),
        ("m/", {"newer_than": 1, "version": 1}, fsdp.Invalid),
        ("m/", {"no_option": 1}, TypeError),
        (b"m/", {}, TypeError),
    ):
        with pytest.raises(error):
            asyncio.run(c.abundle(name, **options))
    assert not c._waits


async def follow(c):
    """Return the values of the versions that were seen, to version 4."""
    seen, version = [], 0
    while 4 not in seen:
        bundle = await c.abundle("m/", newer_than=version, timeout=PATIENCE)
        seen.append(int(bundle["w"].numpy()[0]))
        version = bundle.version
    return seen


async def commit_versions(c):
    for value in range(5):
        await asyncio.to_thread(commit, c, value)


def check_seen(seen):
    for values in seen:
        assert values == sorted(set(values)) and values[-1] == 4


def test_tasks_can_follow_a_bundle_while_others_get_names(c):
    async def main():
        follows = [asyncio.ensure_future(follow(c)) for _ in range(3)]
        name = asyncio.ensure_future(c.aget("a/x", timeout=PATIENCE))
        await commit_versions(c)
        await asyncio.to_thread(c.put, "a/x", b"x")
        return await name, await asyncio.gather(*follows)

    tensor, seen = asyncio.run(main())
    assert tensor.name == "a/x"
    check_seen(seen)
    assert not c._waits


def test_tasks_that_are_answered_at_once_can_wait_again(c):
    async def main():
        follows = [asyncio.ensure_future(follow(c)) for _ in range(3)]
        await commit_versions(c)
        return await asyncio.gather(*follows)

    check_seen(asyncio.run(main()))
    assert not c._waits


def test_a_cancelled_wait_for_a_bundle_leaves_no_hold(c):
    async def main():
        wait = asyncio.ensure_future(c.abundle("m/", timeout=PATIENCE))
        await asyncio.sleep(0)
        wait.cancel()
        with pytest.raises(asyncio.CancelledError):
            await wait
        await asyncio.to_thread(commit, c, 1)

    asyncio.run(main())
    assert not c._waits
    until(lambda: holds(c, "m/w") == 0, "what came too late is released")


# --- channels -----------------------------------------------------------------

OPTIONS = {"capacity": 4096, "credits": 4, "timeout": PATIENCE}


@pytest.fixture
def pair(c):
    with c.channel("a/ch", "producer", **OPTIONS) as producer:
        with c.channel("a/ch", **OPTIONS) as consumer:
            yield producer, consumer
            assert not producer._waits and not consumer._waits


def test_tasks_put_and_get_in_one_loop(pair):
    producer, consumer = pair

    async def produce():
        for i in range(100):
            await producer.aput(i)
        producer.end()

    async def main():
        task = asyncio.create_task(produce())
        got = [thing async for thing in consumer]
        await task
        return got

    assert asyncio.run(main()) == list(range(100))


def test_each_object_is_received_by_one_of_the_waiting_tasks(pair):
    producer, consumer = pair

    async def main():
        waits = [asyncio.create_task(consumer.aget(PATIENCE)) for _ in range(12)]
        await asyncio.sleep(0)
        for i in range(12):
            await producer.aput(i, PATIENCE)
        return await asyncio.gather(*waits)

    assert sorted(asyncio.run(main())) == list(range(12))


def test_a_wait_ends_at_its_timeout(pair):
    producer, consumer = pair

    async def main():
        for timeout in 0, 0.01:
            with pytest.raises(fsdp.Timeout, match="has no item yet"):
                await consumer.aget(timeout)
        for i in range(4):
            await producer.aput(i)
        with pytest.raises(fsdp.Timeout):
            await producer.aput(4, 0.01)
        return [await consumer.aget() for _ in range(4)]

    assert asyncio.run(main()) == [0, 1, 2, 3]


# After two iterations of the loop the first task has been woken, and would run
# in the next one.
@pytest.mark.parametrize("turns", range(3))
def test_a_cancelled_task_takes_no_object(pair, turns):
    producer, consumer = pair

    async def main():
        first, second = (asyncio.create_task(consumer.aget()) for _ in range(2))
        await asyncio.sleep(0)
        producer.put("x")
        for _ in range(turns):
            await asyncio.sleep(0)
        assert not first.done() and first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(main()) == "x"


def test_loops_of_several_threads_share_an_end(pair):
    producer, consumer = pair
    got = []

    async def consume():
        async for thing in consumer:
            got.append(thing)

    threads = [threading.Thread(target=asyncio.run, args=[consume()]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for i in range(60):
        producer.put(i, timeout=PATIENCE)
    producer.end()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(60))


def test_close_ends_the_waits(c):
    consumer = c.channel("a/closed", **OPTIONS)

    async def main():
        wait = asyncio.create_task(consumer.aget())
        await asyncio.sleep(0)
        await asyncio.to_thread(consumer.close)
        with pytest.raises(fsdp.Invalid, match="the channel is closed"):
            await wait

    asyncio.run(main())
    assert not consumer._waits
    with pytest.raises(fsdp.Invalid):
        consumer.fileno()


def test_the_descriptor_can_be_polled(pair):
    producer, consumer = pair
    fd = consumer.fileno()
    assert consumer.fileno() == fd != producer.fileno()
    poll = select.poll()
    poll.register(consumer, select.POLLIN)
    for i in range(10):
        with pytest.raises(fsdp.Timeout):
            consumer.get(timeout=0)
        assert poll.poll(0) == []
        producer.put(i)
        assert poll.poll(PATIENCE * 1000) == [(fd, select.POLLIN)]
        assert consumer.get(timeout=0) == i


def test_the_death_of_a_producer_is_raised_in_a_task(broker, c):
    consumer = c.channel("a/death", **OPTIONS)
    process = start(
        broker,
        """
        import fsdp
        producer = fsdp.connect().channel("a/death", "producer")
        producer.put(1)
        print("put", flush=True)
        input()
        """,
    )

    async def main():
        first = await consumer.aget(PATIENCE)
        wait = asyncio.create_task(consumer.aget())
        await asyncio.to_thread(process.stdout.readline)
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(fsdp.ProducerDied):
            await wait
        with pytest.raises(fsdp.Ended):
            await consumer.aget()
        return first

    assert asyncio.run(main()) == 1
    process.communicate()
    consumer.close()
