import copy
import pickle
import subprocess
import sys

import numpy as np
import pytest

import fsdp


def test_a_named_tensor_is_pickled_as_name_and_version(c):
    data = pickle.dumps(c.put("a/x", np.arange(100000)))
    assert len(data) < 200
    assert pickle.loads(data).numpy().sum() == 4999950000
    assert pickle.loads(data).version == 1


def test_a_version_that_was_replaced_cannot_be_unpickled(c):
    data = pickle.dumps(c.put("a/x", b"old"))
    c.put("a/x", b"new")
    with pytest.raises(fsdp.Gone, match="version 2"):
        pickle.loads(data)
    c.remove("a/x")
    with pytest.raises(fsdp.NotFound):
        pickle.loads(data)


def test_a_name_that_was_removed_and_published_again_is_another_tensor(c):
    old = c.put("a/x", b"old")
    data = pickle.dumps(old)
    c.remove("a/x")
    assert c.put("a/x", b"new").version == old.version
    with pytest.raises(fsdp.Gone, match="another tensor"):
        pickle.loads(data)


def test_an_unnamed_tensor_is_pickled_as_a_ticket(c):
    tensor = c.alloc(3, "u8")
    tensor.copy_from(b"abc")
    tensor.publish()
    data = pickle.dumps(tensor)
    del tensor
    assert bytes(memoryview(pickle.loads(data))) == b"abc"
    with pytest.raises(fsdp.NotFound):
        pickle.loads(data)


def test_a_copy_makes_no_ticket(c):
    tensor = c.alloc(3, "u8")
    tensor.publish()
    assert copy.copy(tensor) is tensor
    with pytest.raises(TypeError):
        copy.deepcopy(tensor)
    assert c.status()["tickets"] == 0


def test_a_connection_cannot_be_pickled(c):
    with pytest.raises(TypeError, match="connect"):
        pickle.dumps(c)


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_tensors_can_be_passed_to_other_processes(broker, tmp_path, method):
    script = tmp_path / "script.py"
    script.write_text(
        f"""
import fsdp, multiprocessing

def total(tensor):
    return int(tensor.numpy().sum())

if __name__ == "__main__":
    c = fsdp.default()
    tensors = [c.put("a/pickled", [1, 2, 3]), c.alloc(2, "i64")]
    tensors[1].numpy()[:] = 7
    tensors[1].publish()
    with multiprocessing.get_context({method!r}).Pool(1) as pool:
        print(pool.map(total, tensors))
    c.remove("a/pickled")
"""
    )
    done = subprocess.run(
        [sys.executable, script], capture_output=True, text=True, timeout=600
    )
    assert (done.returncode, done.stdout) == (0, "[6, 14]\n"), done.stderr
