"""Tests that each export of a tensor is a hold, and that the broker's counts
are right at the end.
"""

import gc
import random
import threading
import tracemalloc

import numpy as np
import pytest

import fsdp
from conftest import holds, until


def test_hold_and_release_are_counted(c):
    tensor = c.put("a/x", b"abc")
    tensor.hold()
    tensor.hold()
    assert holds(c, "a/x") == 3
    tensor.release()
    tensor.release()
    tensor.release()
    assert holds(c, "a/x") == 0
    assert not tensor.held
    with pytest.raises(ValueError):
        tensor.release()
    tensor.hold()
    assert holds(c, "a/x") == 1


def test_a_released_tensor_cannot_be_accessed(c):
    tensor = c.put("a/x", b"abc")
    tensor.release()
    with pytest.raises(ValueError, match="not held"):
        memoryview(tensor)
    with pytest.raises(ValueError, match="not held"):
        np.asarray(tensor)
    with pytest.raises(ValueError, match="not held"):
        tensor.__dlpack__()


def test_a_replaced_version_cannot_be_held_again(c):
    tensor = c.put("a/x", b"old")
    tensor.release()
    c.put("a/x", b"new")
    with pytest.raises(fsdp.Gone):
        tensor.hold()


@pytest.mark.parametrize(
    "export",
    [memoryview, np.asarray, np.from_dlpack, lambda t: t.__dlpack__(max_version=(1, 0))],
    ids=["memoryview", "numpy", "from_dlpack", "capsule"],
)
def test_an_export_holds_the_tensor_by_itself(c, export):
    tensor = c.put("a/x", np.arange(3))
    made = export(tensor)
    assert holds(c, "a/x") == 2
    tensor.release()
    assert holds(c, "a/x") == 1
    with pytest.raises(ValueError):
        tensor.release()
    del tensor
    gc.collect()
    assert holds(c, "a/x") == 1
    del made
    gc.collect()
    assert holds(c, "a/x") == 0


def test_slices_of_an_array_keep_the_tensor(c):
    piece = c.put("a/x", np.arange(10)).numpy()[3:7][::2]
    gc.collect()
    c.remove("a/x")
    c.put("b/x", np.zeros(10))
    assert piece.tolist() == [3, 5]


def test_with_releases_at_its_end(c):
    c.put("a/x", b"abc")
    with c["a/x"] as tensor:
        array = tensor.numpy()
        assert holds(c, "a/x") == 2
    assert holds(c, "a/x") == 1
    assert array.tobytes() == b"abc"
    with pytest.raises(ZeroDivisionError), c["a/x"] as tensor:
        tensor.release()
        1 / 0
    del array
    assert holds(c, "a/x") == 0


def test_random_exports_and_drops_leave_no_holds(c):
    rng = random.Random(7)
    tensor = c.put("a/x", np.arange(8))
    makers = [memoryview, np.asarray, np.from_dlpack, lambda t: c["a/x"]]
    kept = []
    for _ in range(10000):
        if kept and rng.random() < 0.5:
            kept.pop(rng.randrange(len(kept)))
        else:
            kept.append(rng.choice(makers)(tensor))
    assert holds(c, "a/x") == 1 + len(kept)
    kept.clear()
    assert holds(c, "a/x") == 1


def test_threads_leave_no_holds(c):
    c.put("a/x", np.arange(8))
    failures = []

    def work():
        for _ in range(500):
            tensor = c["a/x"]
            if tensor.numpy()[7] != 7:
                failures.append(tensor)
            if c.get("a/x", timeout=1).numpy().sum() != 28:
                failures.append(tensor)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    del threads
    until(lambda: holds(c, "a/x") == 0, "all holds are dropped")


def test_python_memory_does_not_grow(c):
    c.put("a/x", np.arange(8))

    def work():
        for _ in range(2000):
            tensor = c["a/x"]
            memoryview(tensor)
            tensor.numpy()
            np.from_dlpack(tensor)
            tensor.shape, tensor.name, repr(tensor)
            with pytest.raises(KeyError):
                c["a/none"]
            c.get(["a/x", "a/x"])
            c.entries()
            c.who("a/x")

    tracemalloc.start()
    try:
        work()
        gc.collect()
        before = tracemalloc.get_traced_memory()[0]
        work()
        gc.collect()
        assert tracemalloc.get_traced_memory()[0] - before < 50000
    finally:
        tracemalloc.stop()


def test_arrays_and_capsules_keep_holds_after_their_tensor_was_freed(c):
    tensor = c.put("a/x", np.arange(3))
    tensor.hold()
    array = tensor.numpy()
    copy = array[:2]
    assert holds(c, "a/x") == 3
    del tensor, array
    # The buffer keeps the Tensor object alive. A capsule keeps only the tensor.
    assert holds(c, "a/x") == 3
    del copy
    assert holds(c, "a/x") == 0
    capsule = c["a/x"].__dlpack__()
    assert holds(c, "a/x") == 1
    del capsule
    assert holds(c, "a/x") == 0
