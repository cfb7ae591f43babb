"""Tests bundles: many tensors that are published, replaced and got as one."""

import signal
import threading

import numpy as np
import pytest

import fsdp
from conftest import PATIENCE, holds, start, until


def publish(c, value, n=3, **options):
    with c.stage("m/", **options) as stage:
        for i, tensor in enumerate(stage.alloc([(f"w{i}", (2, i + 1), "f32") for i in range(n)])):
            tensor.numpy()[:] = value + i
    return stage.version


def test_members_are_returned_together_and_in_order(broker, c):
    assert publish(c, 10) == 1
    with fsdp.connect(broker.path) as other:
        before = other.status()["requests"]
        bundle = other.bundle("m/")
        assert other.status()["requests"] - before <= 2
        assert list(bundle) == ["w0", "w1", "w2"]
        assert (bundle.name, bundle.version, len(bundle)) == ("m/", 1, 3)
        assert bundle.nbytes == 4 * (2 + 4 + 6)
        assert bundle["w2"].numpy().tolist() == [[12] * 3] * 2
        assert bundle["w2"].readonly and bundle["w2"].name == "m/w2"
        assert "w3" not in bundle and bundle.metadata == {}


def test_a_missing_member_is_a_key_error_with_a_message(c):
    publish(c, 10)
    bundle = c.bundle("m/")
    with pytest.raises(fsdp.NotFound) as caught:
        bundle["w3"]
    assert str(caught.value) == "\"m/\" has no tensor 'w3'; keys() shows its names"
    assert isinstance(caught.value, KeyError) and bundle.get("w3") is None


def test_uncommitted_members_are_invisible(c):
    stage = c.stage("m/")
    stage.put("w", b"abc")
    assert c.names() == []
    with pytest.raises(fsdp.NotFound):
        c.bundle("m/")
    assert stage.commit() == 1
    assert c.names() == ["m/w"]


def test_an_exception_aborts(c):
    before = c.status()["bytes_live"]
    with pytest.raises(RuntimeError, match="half-way"):
        with c.stage("m/") as stage:
            stage.alloc("w", 1 << 20, "u8")
            raise RuntimeError("half-way")
    until(lambda: c.status()["bytes_live"] == before, "the memory is free")
    with pytest.raises(fsdp.Invalid, match="committed or aborted"):
        stage.alloc("x", 1, "u8")
    with pytest.raises(fsdp.Invalid, match="committed or aborted"):
        stage.commit()


def test_a_stage_that_is_dropped_is_aborted(c):
    stage = c.stage("m/")
    stage.alloc("w", 1 << 20, "u8")
    live = c.status()["bytes_live"]
    del stage
    until(lambda: c.status()["bytes_live"] < live, "the memory is free")


def test_a_bundle_may_have_more_members_than_one_request(c):
    with c.stage("m/") as stage:
        for i, tensor in enumerate(stage.alloc([(str(i), 1, "i32") for i in range(1000)])):
            tensor.numpy()[0] = i
    bundle = c.bundle("m/")
    assert [int(t.numpy()[0]) for t in bundle.values()] == list(range(1000))


def test_arrays_of_the_stage_are_read_only_after_the_commit(c):
    with c.stage("m/") as stage:
        tensor = stage.put("w", np.arange(5))
        assert not tensor.readonly
    assert tensor.readonly
    assert tensor.numpy().tolist() == [0, 1, 2, 3, 4]


def test_metadata_is_not_a_member(c):
    with c.stage("m/") as stage:
        stage.metadata["format"] = "pt"
        stage.put("w", b"abc")
    bundle = c.bundle("m/")
    assert bundle.metadata == {"format": "pt"} and list(bundle) == ["w"]
    with c.stage("m/", replace=True) as stage:
        stage.metadata = {"only": "this"}
    bundle = c.bundle("m/")
    assert bundle.metadata == {"only": "this"} and len(bundle) == 0
    assert not bundle.stale


@pytest.mark.parametrize("metadata", [{"step": 100}, {"step": None}, {100: "step"}])
def test_metadata_that_no_file_can_have_is_refused(c, metadata):
    stage = c.stage("m/")
    stage.metadata = metadata
    with pytest.raises(fsdp.Invalid, match="100|None"):
        stage.commit()
    stage.metadata = {"step": "100"}
    stage.commit()
    assert c.bundle("m/").metadata == {"step": "100"}


def test_an_old_version_stays_valid_after_a_new_one(c):
    publish(c, 10)
    old = c.bundle("m/")
    assert not old.stale
    assert publish(c, 20, replace=True) == 2
    assert old.stale
    new = c.bundle("m/")
    assert not new.stale and new.version == 2
    assert (old["w0"].numpy() == 10).all() and (new["w0"].numpy() == 20).all()
    c.remove("m/")
    assert new.stale


def test_a_reader_waits_for_a_newer_version(broker, c):
    publish(c, 10)
    got = []
    thread = threading.Thread(
        target=lambda: got.append(c.bundle("m/", newer_than=1, timeout=PATIENCE))
    )
    thread.start()
    with fsdp.connect(broker.path) as writer:
        until(lambda: writer.status()["waiters"] > 0, "the reader waits")
        publish(writer, 20, replace=True)
    thread.join()
    assert got[0].version == 2
    with pytest.raises(fsdp.Timeout):
        c.bundle("m/", newer_than=2, timeout=0.01)


def test_flags_and_wrong_arguments(c):
    with pytest.raises(fsdp.NotFound):
        c.stage("m/", replace=True, must_exist=True).commit()
    publish(c, 10)
    with pytest.raises(fsdp.Exists):
        c.stage("m/")
    with pytest.raises(fsdp.Invalid):
        c.stage("m")
    with pytest.raises(fsdp.Invalid):
        c.bundle("m", timeout=0)
    with pytest.raises(TypeError):
        c.bundle("m/", patience=1)
    with pytest.raises(TypeError, match="pickled"):
        __import__("pickle").dumps(c.bundle("m/"))
    with c.stage("empty/") as stage:
        with pytest.raises(fsdp.Invalid, match="no tensors"):
            stage.commit()
        stage.put("w", b"x")


def test_holds_end_with_the_bundle_and_its_arrays(c):
    publish(c, 10)
    bundle = c.bundle("m/")
    array = bundle["w1"].numpy()
    assert holds(c, "m/w0") == 1 and holds(c, "m/w1") == 2
    del bundle
    assert holds(c, "m/w0") == 0 and holds(c, "m/w1") > 0
    assert (array == 11).all()
    del array
    assert holds(c, "m/w1") == 0


def test_a_killed_writer_leaves_the_old_version(broker, c):
    publish(c, 10)
    live = c.status()["bytes_live"]
    process = start(
        broker,
        """
        import fsdp, sys
        c = fsdp.connect()
        stage = c.stage("m/", replace=True)
        stage.alloc("w0", 1 << 20, "u8")
        print("half-way", flush=True)
        sys.stdin.readline()
        """,
    )
    assert process.stdout.readline() == "half-way\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    until(lambda: c.status()["bytes_live"] == live, "what it staged is free")
    assert c.bundle("m/").version == 1
    assert publish(c, 20, replace=True) == 2


# --- private mappings ---------------------------------------------------------


def own_bytes(array):
    """Returns how many bytes of the array's mapping are private copies, not
    those of a file."""
    at, is_its = array.ctypes.data, False
    with open("/proc/self/smaps") as file:
        for first, *rest in map(str.split, file):
            if "-" in first:
                begin, end = (int(x, 16) for x in first.split("-"))
                is_its = begin <= at < end
            elif is_its and first == "Anonymous:":
                return int(rest[0]) * 1024


def test_only_written_pages_of_a_private_array_are_copied(broker, c):
    with c.stage("t/m/", replace=True) as stage:
        stage.put("small", b"x")  # makes the large ones begin within a page
        stage.alloc("large", (8 << 20) // 4, "f32").numpy()[:] = 1
        stage.alloc("next", 1 << 20, "u8").numpy()[:] = 2
    bundle = c.bundle("t/m/")
    mine = bundle["large"].numpy(private=True)
    other = bundle["large"].numpy(private=True)
    assert (mine == 1).sum() == mine.size
    assert own_bytes(mine) == 0
    mine[:1000], mine[-1] = 7, 8
    assert 0 < own_bytes(mine) < 1 << 20
    assert (mine[999], mine[1000], mine[-2], mine[-1]) == (7, 1, 1, 8)
    assert (other == 1).all() and (bundle["large"].numpy() == 1).all()
    with fsdp.connect(broker.path) as client:
        assert (client["t/m/large"].numpy() == 1).all()
        assert (client["t/m/next"].numpy() == 2).all()


def test_a_private_array_has_a_hold_and_outlives_bundle_and_client(broker):
    client = fsdp.connect(broker.path)
    with client.stage("t/outlive/") as stage:
        stage.alloc("w", 1 << 20, "u8").numpy()[:] = 3
    tensor = client.bundle("t/outlive/")["w"]
    mine = tensor.numpy(private=True)[1:]
    assert holds(client, "t/outlive/w") > 0
    with client.stage("t/outlive/", replace=True) as stage:
        stage.alloc("w", 1 << 20, "u8").numpy()[:] = 4
    tensor.release()
    client.remove("t/outlive/")
    client.close()
    mine[0] = 5
    assert (mine[0], mine[1], mine[-1]) == (5, 3, 3)


def test_a_private_array_of_a_tensor_outside_bundles_is_a_copy(c):
    tensor = c.put("t/x", bytes(2 << 20))
    mine = tensor.numpy(private=True)
    mine[:] = 1
    assert mine.flags.owndata and not tensor.numpy().any()
    tensor.release()
    with pytest.raises(fsdp.Invalid):
        tensor.numpy(private=True)


def test_notebooks_show_tensors_and_bundles_as_tables(c):
    with c.stage("a/<m>/") as stage:
        stage.alloc([(f"w{i}", (2, 3), "f32") for i in range(100)])
    bundle = c.bundle("a/<m>/")
    html = bundle._repr_html_()
    assert "a/&lt;m&gt;/" in html and "100 tensors" in html
    assert "<td>w59</td><td>(2, 3)</td><td>f32</td><td>24</td>" in html and "w60" not in html
    assert "<tr><td>and 40 more</td></tr>" in html
    assert "<th>dtype</th><td>f32</td>" in bundle["w0"]._repr_html_()
