import array
import os
import threading

import numpy as np
import pytest

import fsdp
from conftest import Broker, connect_impatiently, start, until


def test_an_array_that_was_put_can_be_read_by_another_connection(broker, c):
    c.put("a/x", np.arange(6, dtype="f4").reshape(2, 3))
    with fsdp.connect(broker.path) as other:
        tensor = other["a/x"]
        assert tensor.shape == (2, 3)
        assert tensor.strides == (3, 1)
        assert tensor.dtype == "f32"
        assert tensor.nbytes == 24
        assert (tensor.name, tensor.version) == ("a/x", 1)
        assert tensor.device == "host"
        assert tensor.readonly and not tensor.tainted
        assert tensor.numpy().tolist() == [[0, 1, 2], [3, 4, 5]]


def test_a_tensor_is_written_in_place_and_then_published(c):
    tensor = c.alloc((2, 2), "i32")
    assert not tensor.readonly
    tensor.numpy()[:] = 5
    assert tensor.publish("a/x") == 1
    assert tensor.readonly
    assert c["a/x"].numpy().sum() == 20


def test_a_list_is_allocated_in_one_round_trip(c):
    before = c.status()["requests"]
    tensors = c.alloc([((2,), "f32"), (3, np.float64), ((), "u8")])
    assert c.status()["requests"] - before <= 2
    assert [t.shape for t in tensors] == [(2,), (3,), ()]
    assert [t.dtype for t in tensors] == ["f32", "f64", "u8"]


def test_a_list_of_names_is_returned_in_order_or_not_at_all(c):
    for i in range(3):
        c.put(f"a/{i}", np.array([i]))
    assert [t.numpy()[0] for t in c.get(["a/2", "a/0", "a/1"])] == [2, 0, 1]
    with pytest.raises(fsdp.NotFound):
        c.get(["a/0", "a/9"])
    assert c.get([]) == []


@pytest.mark.parametrize(
    "value",
    [
        b"abc",
        bytearray(b"abc"),
        array.array("d", [1, 2]),
        memoryview(b"abcdef")[::2],
        np.arange(12).reshape(3, 4).T,
        np.array([1, 2], dtype=">i4"),
        np.float32(3),
        [[1, 2], [3, 4]],
        7,
        np.zeros((0, 3)),
    ],
    ids=repr,
)
def test_put_accepts_the_same_values_as_numpy(c, value):
    expected = np.asarray(memoryview(value) if isinstance(value, bytes) else value)
    got = c.put("a/x", value).numpy()
    assert got.shape == expected.shape
    assert (got == expected).all()


def test_put_accepts_a_tensor(c):
    first = c.put("a/x", np.arange(4))
    assert c.put("a/y", first).numpy().tolist() == [0, 1, 2, 3]
    raw = c.alloc(4, "bf16")
    raw.copy_from(b"12345678")


def test_copy_from_refuses_a_view_with_gaps_or_repeated_elements(c):
    base = c.alloc(8, "u8")
    base.copy_from(b"x" * 8)
    every_other = np.zeros((4, 4), "u1")[:, ::2]
    for strides in (4, 1), (0, 1):
        view = base.view((2, 2), strides=strides)
        for source in b"1234", every_other[:2]:
            with pytest.raises(fsdp.Error, match="copy into numpy"):
                view.copy_from(source)
    assert bytes(memoryview(base)) == b"x" * 8


def test_names_and_versions(c):
    assert "a/x" not in c
    assert c.put("a/x", b"1").version == 1
    assert c.put("a/x", b"2").version == 2
    c.put("b/y", b"3")
    assert "a/x" in c
    assert c.names() == ["a/x", "b/y"]
    assert c.names("b/") == ["b/y"]
    (entry,) = c.entries("a/")
    assert (entry["name"], entry["version"], entry["nbytes"]) == ("a/x", 2, 1)
    c.remove("a/x")
    assert "a/x" not in c
    with pytest.raises(KeyError):
        c.remove(["a/x"])


def test_the_name_of_a_bundle_may_be_looked_for(c):
    assert "m/" not in c
    with c.stage("m/") as stage:
        stage.alloc([(f"w{i}", 2, "u8") for i in range(300)])
        assert "m/" not in c
    assert "m/" in c and "m/w7" in c
    del stage
    assert c.who("m/") == []
    c.remove("m/")
    assert "m/" not in c
    with pytest.raises(fsdp.Invalid):
        "" in c


def test_get_waits_for_a_name(c):
    timer = threading.Timer(0.05, lambda: c.put("a/late", b"x"))
    timer.start()
    assert c.get("a/late", timeout=20).shape == (1,)
    timer.join()


def test_get_waits_for_a_newer_version(c):
    c.put("a/x", b"1")
    with pytest.raises(fsdp.Timeout):
        c.get("a/x", newer_than=1, timeout=0.01)
    c.put("a/x", b"2")
    assert c.get("a/x", newer_than=1).version == 2


def test_a_tensor_outlives_its_name(c):
    tensor = c.put("a/x", b"old")
    c.put("a/x", b"new")
    c.remove("a/x")
    assert bytes(memoryview(tensor)) == b"old"


def test_several_connections_can_write_one_tensor(broker, c):
    tensor = c.alloc(3, "u8")
    tensor.copy_from(b"abc")
    ticket = tensor.ticket()
    with fsdp.connect(broker.path) as other:
        got = other.redeem(ticket, writable=True)
        assert not got.readonly
        memoryview(got)[1] = ord("x")
        assert bytes(memoryview(tensor)) == b"axc"
        memoryview(tensor)[2] = ord("y")
        assert bytes(memoryview(got)) == b"axy"
        del got


def test_a_published_tensor_cannot_be_redeemed_writable(broker, c):
    tensor = c.put("a/x", b"abc")
    with fsdp.connect(broker.path) as other:
        with pytest.raises(fsdp.Denied, match="was published"):
            other.redeem(tensor.ticket(), writable=True)


def test_a_ticket_passes_on_an_unnamed_tensor(broker, c):
    tensor = c.alloc(3, "u8")
    tensor.copy_from(b"abc")
    tensor.publish()
    ticket = tensor.ticket()
    assert len(ticket) == 16
    with fsdp.connect(broker.path) as other:
        assert bytes(memoryview(other.redeem(ticket))) == b"abc"
        with pytest.raises(fsdp.NotFound):
            other.redeem(ticket)
    with pytest.raises(fsdp.Invalid):
        c.redeem(b"short")


def test_views_share_memory(c):
    base = c.alloc((4, 4), "f32")
    base.numpy()[:] = np.arange(16).reshape(4, 4)
    column = base.view((4,), strides=(4,), offset=4)
    assert column.numpy().tolist() == [1, 5, 9, 13]
    with pytest.raises(ValueError):
        base.view((5, 4))
    with pytest.raises(ValueError):
        base.view((4,), strides=(1, 1))


def test_who_lists_the_holders_of_a_tensor(c):
    tensor = c.put("a/x", b"x")
    (holder,) = c.who("a/x")
    assert holder["pid"] == os.getpid()
    assert holder["holds"] == 1
    del tensor
    assert c.who("a/x") == []


def test_who_lists_the_holders_of_a_bundle(broker, c):
    with c.stage("a/m/") as stage:
        stage.alloc([("x", 4, "u8"), ("y", 4, "u8"), ("sub/z", 4, "u8")])
    with pytest.raises(fsdp.NotFound, match="there is no bundle 'a/'"):
        c.who("a/")
    bundle = c.bundle("a/m/")
    more = c["a/m/y"]
    process = start(
        broker,
        """
        import fsdp
        held = fsdp.connect()["a/m/x"]
        print("held", flush=True)
        input()
        """,
    )
    assert process.stdout.readline() == "held\n"
    holds = {holder["pid"]: holder["holds"] for holder in c.who("a/m/")}
    assert holds == {os.getpid(): 4, process.pid: 1}
    process.communicate("\n")
    del bundle, more
    until(lambda: c.who("a/m/") == [], "nobody holds it")


def test_status_has_counters_and_warnings(c):
    status = c.status()
    assert status["sessions"] >= 1
    assert isinstance(status["note"], str)


def test_memory_id_is_unique_and_survives_a_restart(c, supervised):
    with fsdp.connect(supervised.path) as other:
        before = other.status()
        supervised.kill()
        after = other.status()
    assert after["epoch"] > before["epoch"]
    assert after["memory_id"] == before["memory_id"] != c.status()["memory_id"]


def test_a_known_name_is_gone_when_its_broker_was_replaced(broker):
    first = Broker()
    link = os.path.join(broker.dir.name, "link")
    os.symlink(first.path, link)

    def is_gone():
        try:
            reader["a/x"]
        except fsdp.Gone:
            return True
        return False

    with fsdp.connect(link) as reader:
        with reader.stage("a/m/") as bundle:
            bundle.put("w", [2.0])
        held, model = reader.put("a/x", [1.0]), reader.bundle("a/m/")
        assert not is_gone() and not model.stale
        first.stop()
        os.unlink(link)
        os.symlink(broker.path, link)
        until(is_gone, "the connection is lost")
        assert model.stale
        assert held.numpy().tolist() == [1.0]
        assert model["w"].numpy().tolist() == [2.0]
    os.unlink(link)


def test_the_default_connection_is_shared(broker):
    assert fsdp.default() is fsdp.default()
    assert fsdp.default().ping() is None


def test_a_closed_connection_is_an_error_and_keeps_its_tensors(broker):
    client = fsdp.connect(broker.path)
    tensor = client.put("a/closed", b"abc")
    array = tensor.numpy()
    client.close()
    client.close()
    assert client.closed
    for call in (client.ping, client.names, lambda: client["a/closed"]):
        with pytest.raises(ValueError, match="closed"):
            call()
    assert array.tobytes() == b"abc"
    tensor.hold()
    tensor.release()
    with fsdp.connect(broker.path) as other:
        assert len(other.who("a/closed")) == 1
        del tensor, array
        assert other.who("a/closed") == []
        other.remove("a/closed")


def test_invalid_arguments_are_refused(c):
    with pytest.raises(TypeError):
        c.get()
    with pytest.raises(TypeError):
        c.get("a/x", patience=3)
    with pytest.raises(TypeError):
        c.get(3)
    with pytest.raises(TypeError):
        c[3]
    with pytest.raises(ValueError):
        c["a\0b"]
    with pytest.raises(ValueError):
        c.get("a/x", timeout=-1)
    with pytest.raises(TypeError, match="get\\(\\) has no argument 'version'"):
        c.get("a/x", version=3)
    with pytest.raises(TypeError, match="bundle\\(\\) has no argument 'times'; it has .*version"):
        c.bundle("a/", times=3)
    with pytest.raises(fsdp.Invalid, match="no uid"):
        c.get("a/x", trusted_uid=2**32)
    with pytest.raises(fsdp.Invalid, match="no dtype"):
        c.alloc((1,), "f31")
    with pytest.raises(fsdp.Invalid, match="dimensions"):
        c.alloc((1,) * 9, "f32")
    with pytest.raises(fsdp.Invalid):
        c.alloc((-1,), "f32")
    with pytest.raises(fsdp.Invalid, match=r"more than 2\^62 bytes"):
        c.alloc((2**40, 2**40), "f32")
    with pytest.raises(fsdp.Invalid, match=r"shape\[1\] is beyond 64 bits"):
        c.alloc((1, 2**63), "f32")
    with pytest.raises(fsdp.Invalid):
        c.alloc((1,), "f32", device="disk")
    with pytest.raises(fsdp.Invalid, match="a name is empty"):
        c.put("", b"123")
    for shape in ((2,), (2, 3), 2, [((2,), "f32"), (2,)]):
        with pytest.raises(TypeError, match="give the dtype"):
            c.alloc(shape)
    with pytest.raises(fsdp.Invalid):
        c.alloc(2, "f32").copy_from(b"123")
    with pytest.raises(TypeError):
        fsdp.Tensor()


def test_a_connection_may_be_closed_while_a_thread_waits(broker, c):
    client = fsdp.connect(broker.path)
    got = []
    thread = threading.Thread(
        target=lambda: got.append(client.get("a/late", timeout=20))
    )
    thread.start()
    until(lambda: c.status()["waiters"] > 0, "the get waits")
    client.close()
    c.put("a/late", b"abc")
    thread.join()
    assert bytes(memoryview(got[0])) == b"abc"


def test_a_connection_that_was_refused_shows_its_socket(tmp_path):
    path = str(tmp_path / "none")
    client = fsdp.Client.__new__(fsdp.Client)
    with pytest.raises(fsdp.Disconnected):
        client.__init__(path)
    assert repr(client) == f"fsdp.Client({path!r}, closed)"


def test_the_environment_determines_the_default_connection(broker, monkeypatch):
    client = fsdp.default()
    assert fsdp.default() is client and fsdp.default(broker.path) is client
    assert repr(client) == f"fsdp.Client({broker.path!r})"
    other = Broker()
    monkeypatch.setenv("FSDP_SOCKET", other.path)
    with fsdp.default() as its:
        its.put("a/other", b"1")
        assert repr(its) == f"fsdp.Client({other.path!r})" and "a/other" not in client
    monkeypatch.undo()
    assert fsdp.default() is client
    other.stop()


@pytest.mark.parametrize("seconds, waits", [(0.05, "50 ms"), (0, "1 ms")])
def test_calls_wait_once_for_an_unavailable_broker(seconds, waits):
    broker = Broker()
    client = connect_impatiently(broker.path, seconds)
    client.put("a/x", b"1")
    broker.stop()
    with pytest.raises(fsdp.Disconnected, match=f"did not come back within {waits}"):
        client.ping()
    for look in (lambda: "a/y" in client), (lambda: client["a/y"]):
        with pytest.raises(fsdp.Disconnected):
            look()
    client.close()
    with pytest.raises(fsdp.Invalid, match="a time must be 0 or more seconds"):
        fsdp.connect(broker.path, reconnect=-1)
