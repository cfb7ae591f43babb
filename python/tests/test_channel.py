"""Tests channels. Each item is received once, in order and without copies, and
a process is told when another one ends.
"""

import gc
import os
import re
import signal
import threading
import weakref

import numpy
import pytest

import fsdp
from conftest import PATIENCE, run, start, until

MIB = 1 << 20


@pytest.fixture
def pair(c):
    options = {"capacity": MIB, "credits": 4, "timeout": PATIENCE}
    with c.channel("t/ch", "producer", **options) as producer:
        with c.channel("t/ch", "consumer", **options) as consumer:
            yield producer, consumer


def test_objects_are_received_unchanged_and_in_order(pair):
    producer, consumer = pair
    things = [
        None,
        {"a": [1, 2.5, "x"], "b": (b"raw", {3})},
        numpy.arange(12, dtype="f4").reshape(3, 4),
        {"x": numpy.array(7), "empty": numpy.empty((0, 3)), "t": numpy.ones((2, 2)).T},
    ]
    for thing in things:
        producer.put(thing)
    for thing in things:
        got = consumer.get(timeout=PATIENCE)
        assert str(got) == str(thing)


@pytest.mark.parametrize(
    "words", [[0], [8, *[0] * 7], [1 << 63], [1, 65], [2, 64, 1], [2, 1 << 63, 1 << 63]]
)
def test_an_item_of_another_format_is_refused(pair, words):
    producer, consumer = pair
    item = producer._port.begin(64, PATIENCE)
    memoryview(item)[: 8 * len(words)] = numpy.array(words, "u8").tobytes()
    item.send()
    with pytest.raises(fsdp.Invalid, match="Channel.put"):
        consumer.get(timeout=PATIENCE)
    producer.put("next")
    assert consumer.get(timeout=PATIENCE) == "next"


def test_elements_are_not_copied_and_may_be_changed(pair):
    producer, consumer = pair
    producer.put({"x": numpy.zeros(1000)})
    x = consumer.get(timeout=PATIENCE)["x"]
    assert not x.flags.owndata and x.flags.writeable
    assert x.ctypes.data % 64 == 0
    x += 1
    assert x.sum() == 1000


def test_a_buffer_is_freed_with_its_last_array(pair):
    producer, consumer = pair
    for i in range(4):
        producer.put(numpy.full(1000, i))
    with pytest.raises(fsdp.Timeout):
        producer.put(0, timeout=0.01)
    first = consumer.get()
    part = first[5:]
    del first
    with pytest.raises(fsdp.Timeout):
        producer.put(0, timeout=0)
    del part
    producer.put(4, timeout=PATIENCE)
    assert consumer.info()["queued"] == 4


def test_arrays_outlive_the_channel_and_the_connection(broker):
    options = {"capacity": 4096, "timeout": PATIENCE}
    client = fsdp.connect(broker.path)
    producer = client.channel("t/outlive", "producer", **options)
    consumer = client.channel("t/outlive", **options)
    producer.put(numpy.arange(200))
    array = consumer.get(timeout=PATIENCE)
    consumer.close()
    producer.close()
    client.close()
    array *= 2
    assert array.tolist() == list(range(0, 400, 2))
    with pytest.raises(fsdp.Invalid, match="the channel is closed"):
        consumer.get()
    del array
    gc.collect()


def test_arrays_in_use_do_not_keep_a_closed_channel(c):
    options = {"capacity": 4096, "credits": 2, "timeout": PATIENCE}
    producer = c.channel("t/kept", "producer", **options)
    consumer = c.channel("t/kept", **options)
    for i in range(2):
        producer.put(numpy.full(200, i))
    arrays = [consumer.get(timeout=PATIENCE) for _ in range(2)]
    consumer.close()
    producer.close()
    with pytest.raises(fsdp.NotFound):
        c.channel("t/kept", timeout=0)
    for i, array in enumerate(arrays):
        array += 1
        assert array.tolist() == [i + 1] * 200


def test_an_item_that_is_kept_returns_its_credit(pair):
    producer, consumer = pair
    kept = []
    for i in range(20):
        producer.put(numpy.full(200, i), timeout=PATIENCE)
        item = consumer._port.receive(PATIENCE)
        item.keep()
        kept.append(memoryview(item))
    assert consumer._port.held == 0
    with pytest.raises(fsdp.Invalid, match="the item is not held"):
        item.keep()
    del item
    for i, view in enumerate(kept):
        assert numpy.full(200, i).tobytes() in bytes(view)
    producer.put("next", timeout=PATIENCE)
    assert consumer.get(timeout=PATIENCE) == "next"


def test_the_number_of_buffers_changes_while_it_is_used(pair):
    producer, consumer = pair
    for i in range(4):
        producer.put(i)
    consumer.resize(1)
    producer.resize(6, timeout=PATIENCE)
    for i in range(4, 6):
        producer.put(i, timeout=PATIENCE)
    producer.resize(2)
    for i in range(6):
        assert consumer.get(timeout=PATIENCE) == i
    until(lambda: producer.info()["credits"] == 2, "two buffers")
    for i in range(2):
        producer.put(i, timeout=PATIENCE)
    with pytest.raises(fsdp.Timeout):
        producer.put(2, timeout=0)
    with pytest.raises(fsdp.Invalid, match="1 to 64 slots, not 65"):
        producer.resize(65)


def test_a_channel_ends_when_its_producers_end(pair):
    producer, consumer = pair
    for i in range(3):
        producer.put(i)
    producer.end()
    assert list(consumer) == [0, 1, 2]
    with pytest.raises(fsdp.Ended):
        consumer.get()
    with pytest.raises(EOFError):
        consumer.get()


def test_an_object_that_is_too_large_is_refused_and_the_next_is_sent(pair):
    producer, consumer = pair
    for _ in range(6):
        with pytest.raises(fsdp.Invalid, match=f"whose capacity is {MIB}; open it"):
            producer.put(numpy.zeros(MIB, dtype="u1"))
    producer.put("small")
    assert consumer.get(timeout=PATIENCE) == "small"


def test_an_object_that_cannot_be_pickled_uses_no_buffer(pair):
    producer, consumer = pair
    for _ in range(6):
        with pytest.raises((AttributeError, TypeError)):
            producer.put(threading.Lock())
    producer.put(1, timeout=0)
    assert consumer.get() == 1


def test_a_read_only_array_is_received_read_only(pair):
    producer, consumer = pair
    array = numpy.arange(200)
    array.flags.writeable = False
    producer.put(array)
    assert not consumer.get(timeout=PATIENCE).flags.writeable


def test_producers_get_an_error_when_all_consumers_have_left(c):
    options = {"capacity": 4096, "credits": 1, "timeout": PATIENCE}
    with c.channel("t/left", "producer", **options) as producer:
        c.channel("t/left", **options).close()
        with pytest.raises(fsdp.Left):
            producer.put(0, timeout=PATIENCE)
            producer.put(1, timeout=PATIENCE)


ORDERS = {
    "nothing": "",
    "array_last": "del consumer, producer, c",
    "channels_last": "del c, array",
    "closed": "c.close(); consumer.close(); producer.close()",
    "at_exit": "import atexit; atexit.register(print, array.sum(), file=sys.stderr)",
    "os_exit": "import os; os._exit(0)",
}


@pytest.mark.parametrize("order", ORDERS)
def test_a_process_may_end_in_any_order(broker, order):
    status, out, err = run(
        broker,
        f"""
        import fsdp, numpy, sys
        c = fsdp.connect()
        producer = c.channel("t/exit-{order}", "producer", capacity=65536)
        consumer = c.channel("t/exit-{order}", capacity=65536)
        producer.put(numpy.ones(1000))
        producer.put(numpy.ones(1000))
        array = consumer.get()
        {ORDERS[order]}
        """,
    )
    assert (status, out) == (0, ""), err


def test_a_forked_child_is_refused(pair):
    producer, _ = pair
    pid = os.fork()
    if pid == 0:
        try:
            producer.put(1)
        except fsdp.Error:
            os._exit(7)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def test_a_broadcast_is_received_by_all_and_read_only(c):
    options = {"capacity": 4096, "mode": "broadcast", "timeout": PATIENCE}
    with c.channel("t/all", "producer", **options) as producer:
        with c.channel("t/all", **options) as one, c.channel("t/all", **options) as two:
            producer.put(numpy.arange(200))
            for consumer in one, two:
                array = consumer.get(timeout=PATIENCE)
                assert array.sum() == 19900 and not array.flags.writeable
                del array


def test_a_channel_of_another_form_is_refused_with_both(c):
    size = {"capacity": 4096, "credits": 2}
    with c.channel("t/form", "producer", mode="broadcast", **size):
        form = "2 slots of 4096 bytes in mode broadcast, not 2 of 4096 in mode share (Python: queue)"
        with pytest.raises(fsdp.Invalid, match=re.escape(form)):
            c.channel("t/form", **size)


def test_a_consumer_that_lags_is_cut(c):
    options = {"capacity": 4096, "credits": 2, "mode": "broadcast", "lag": 0.01}
    with c.channel("t/lag", "producer", **options) as producer:
        with c.channel("t/lag", **options) as quick, c.channel("t/lag", **options) as slow:
            assert (producer.put(0), slow.get(PATIENCE), quick.get(PATIENCE)) == (None, 0, 0)
            for i in range(1, 6):
                producer.put(i, PATIENCE)
                assert quick.get(PATIENCE) == i
            with pytest.raises(fsdp.Lagged, match="5 items behind"):
                slow.get(PATIENCE)
    with pytest.raises(fsdp.Invalid, match="lag"):
        c.channel("t/queue", "producer", capacity=4096, lag=1)


def test_a_consumer_waits_for_the_channel(c):
    with pytest.raises(fsdp.Error):
        c.channel("t/later", timeout=0)
    with pytest.raises(fsdp.Invalid, match="no 'pipe'; use queue or"):
        c.channel("t/later", mode="pipe")
    made = []

    def make():
        made.append(c.channel("t/later", "producer", capacity=4096, timeout=PATIENCE))
        made[0].put("hello")

    thread = threading.Thread(target=make)
    thread.start()
    with c.channel("t/later", timeout=PATIENCE) as consumer:
        assert consumer.get(timeout=PATIENCE) == "hello"
    thread.join()
    made[0].close()


PRODUCE = """
    import fsdp, sys
    ch = fsdp.connect().channel("t/far", "producer", capacity=65536, timeout=20)
    print("open", flush=True)
    for i in range(int(sys.stdin.readline())):
        ch.put([i, b"x" * 1000])
    print("put", flush=True)
    sys.stdin.readline()
"""


def test_the_death_of_a_sending_process_is_reported_once(broker, c):
    with c.channel("t/far", capacity=65536, timeout=PATIENCE) as consumer:
        process = start(broker, PRODUCE)
        assert process.stdout.readline() == "open\n"
        process.stdin.write("100\n")
        process.stdin.flush()
        for i in range(97):
            assert consumer.get(timeout=PATIENCE)[0] == i
        assert process.stdout.readline() == "put\n"
        os.kill(process.pid, signal.SIGKILL)
        process.communicate()
        until(lambda: consumer.info()["producers"] == 0, "the death is seen")
        assert [consumer.get(timeout=PATIENCE)[0] for _ in range(3)] == [97, 98, 99]
        with pytest.raises(fsdp.ProducerDied):
            consumer.get(timeout=PATIENCE)
        with pytest.raises(fsdp.Ended):
            consumer.get(timeout=PATIENCE)


def test_threads_share_both_ends(pair):
    producer, consumer = pair
    got = []

    def send(first):
        for i in range(first, first + 50):
            producer.put(i, timeout=PATIENCE)

    def receive():
        got.extend(consumer.get(timeout=PATIENCE) for _ in range(50))

    threads = [threading.Thread(target=send, args=(i,)) for i in (0, 50)]
    threads += [threading.Thread(target=receive) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == list(range(100))


def test_torch_tensors_are_received_as_views(pair):
    torch = pytest.importorskip("torch", reason="torch is not installed")
    producer, consumer = pair
    batch = {
        "x": torch.arange(600, dtype=torch.float32).reshape(2, 300),
        "small": torch.arange(6),
        "low": torch.ones(5, dtype=torch.bfloat16),
        "mask": torch.tensor([True, False]),
        "scalar": torch.tensor(3),
        "empty": torch.empty(0, 4),
        "turned": torch.arange(6).reshape(2, 3).t(),
        "conjugate": torch.tensor([1 + 2j]).conj(),
    }
    producer.put(batch)
    got = consumer.get(timeout=PATIENCE)
    for key, tensor in batch.items():
        assert got[key].dtype == tensor.dtype and torch.equal(got[key], tensor), key
    x = got["x"]
    del got
    x.add_(1)
    producer.put(1)
    assert consumer.get(timeout=PATIENCE) == 1
    assert torch.equal(x.flatten(), torch.arange(1.0, 601))


def test_a_channel_describes_itself(pair):
    producer, consumer = pair
    assert repr(producer) == "fsdp.Channel('t/ch', 'producer')"
    info = consumer.info()
    assert (info["capacity"], info["credits"], info["mode"]) == (MIB, 4, "queue")
    assert (info["producers"], info["consumers"], info["queued"]) == (1, 1, 0)
    with pytest.raises(TypeError, match="cannot be pickled"):
        producer.put(consumer)


def test_a_slab_is_filled_in_place_and_sent(pair):
    producer, consumer = pair
    specs = [((2, 3), "f32"), ((), "i64"), ((0, 3), "f64"), (5, numpy.uint8)]
    slab = producer.alloc(specs)
    for i, array in enumerate(slab):
        assert array.ctypes.data % 64 == 0
        array[...] = i
    del array
    assert repr(slab) == f"fsdp.Slab({producer.name!r}, 4 arrays)"
    with pytest.raises(TypeError):
        slab[1] = 7  # an item that is replaced would not be sent
    slab.send({"label": 7, "more": numpy.arange(1000)})
    assert list(slab) == []
    arrays, meta = consumer.get(timeout=PATIENCE)
    assert [(a.shape, a.dtype.name) for a in arrays] == [
        ((2, 3), "float32"), ((), "int64"), ((0, 3), "float64"), ((5,), "uint8"),
    ]
    assert [a.tolist() for a in arrays] == [[[0] * 3] * 2, 1, [], [3] * 5]
    assert not arrays[0].flags.owndata and arrays[0].flags.writeable
    assert meta["label"] == 7 and meta["more"].sum() == 499500
    with pytest.raises(fsdp.Invalid, match="the slab was sent"):
        slab.send()
    producer.alloc([]).send("only this")
    assert consumer.get(timeout=PATIENCE) == ([], "only this")


def test_a_slab_whose_arrays_are_in_use_is_not_sent(pair):
    producer, consumer = pair
    slab = producer.alloc([(200, "i64")])
    (array,) = slab
    with pytest.raises(BufferError, match="still used"):
        slab.send()
    assert [each.shape for each in slab] == [(200,)]
    array[:] = 5
    del array
    slab.send()
    assert consumer.get(timeout=PATIENCE)[0][0].sum() == 1000


def test_slabs_use_credits_and_have_the_capacity_of_the_channel(pair):
    producer, consumer = pair
    slabs = [producer.alloc([(8, "u8")]) for _ in range(4)]
    with pytest.raises(fsdp.Timeout):
        producer.alloc([(8, "u8")], timeout=0.01)
    with pytest.raises(fsdp.Invalid, match="capacity is 1048576"):
        slabs[0].send(bytes(MIB))
    slabs[0].send()
    del slabs
    with pytest.raises(fsdp.Invalid, match="capacity is 1048576"):
        producer.alloc([(MIB, "u8")])
    for shape in -1, (2, -100):
        with pytest.raises(fsdp.Invalid, match="a dimension below 0"):
            producer.alloc([(shape, "f32")])
    producer.alloc([(8, "u8")], timeout=PATIENCE)
    assert consumer.get(timeout=PATIENCE)[1] is None
    with pytest.raises(fsdp.Invalid):
        consumer.alloc([(8, "u8")])
    assert consumer.info()["queued"] == 0


def test_a_closed_producer_ends_when_its_slabs_are_freed(pair):
    producer, consumer = pair
    slabs = [producer.alloc([(8, "u8")]) for _ in range(2)]
    producer.close()
    assert producer.closed
    slabs.pop().send("late")
    with pytest.raises(fsdp.Timeout):
        [consumer.get(timeout=0) for _ in range(2)]
    del slabs
    with pytest.raises(fsdp.Ended):
        consumer.get(timeout=PATIENCE)


def test_put_keeps_no_reference_to_a_sent_array(pair):
    producer, _ = pair
    array = numpy.ones(1000)
    gone = weakref.ref(array)
    gc.disable()
    try:
        producer.put([array])
        del array
        assert gone() is None
    finally:
        gc.enable()
