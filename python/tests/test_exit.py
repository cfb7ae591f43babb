"""Tests that a process ends with status 0 and prints nothing, whichever of its
objects, the interpreter and the broker ends first.
"""

import itertools
import os
import signal

import pytest

import fsdp
from conftest import PATIENCE, run, start, until

PARTS = {
    "client": "del c",
    "close": "c.close()",
    "tensor": "del t",
    "array": "del a",
    "capsule": "del p",
}


@pytest.mark.parametrize(
    "order", itertools.permutations(["client", "tensor", "array", "capsule"]), ids="-".join
)
def test_objects_may_be_freed_in_any_order(broker, order):
    # Objects that are not deleted here are left to the end of the interpreter.
    for n in (len(order), 2):
        deaths = "; ".join(PARTS[part] for part in order[:n])
        assert run(
            broker,
            f"""
            import fsdp, numpy
            c = fsdp.connect()
            t = c.put("a/exit", numpy.arange(3))
            a, p = t.numpy(), t.__dlpack__()
            {deaths}
            """,
        ) == (0, "", "")


@pytest.mark.parametrize(
    "end",
    [
        "c.close()",
        "import atexit; atexit.register(lambda: print(a.sum(), end=''))",
        "import atexit; atexit.register(c.close)",
        "import sys; sys.modules['x'] = a",
        "import os; os._exit(0)",
        "raise SystemExit",
        "class X:\n    def __del__(self): bytes(memoryview(t)); t.hold()\nx = X()",
        "import threading\n"
        "def work():\n    while True: c['a/exit'].numpy().sum()\n"
        "threading.Thread(target=work, daemon=True).start()",
        "import threading\n"
        "threading.Thread(target=lambda: c.get('a/never', timeout=None), daemon=True).start()",
        "l = [c, t, a]; l.append(l); del c, t, a",
    ],
)
def test_the_interpreter_may_end_in_any_way(broker, end):
    lines = ["import fsdp, numpy", "c = fsdp.connect()"]
    lines += ["t = c.put('a/exit', numpy.arange(3)); a = t.numpy()", end]
    status, _, err = run(broker, "\n".join(lines))
    assert (status, err) == (0, "")


ENDING = """
    import fsdp, sys
    c = fsdp.default()
    t = c.put("a/x", b"abc")
    print("ready", flush=True)
    sys.stdin.readline()
"""


def test_the_end_does_not_wait_for_a_broker_that_does_not_reply(supervised):
    process = start(supervised, ENDING)
    assert process.stdout.readline() == "ready\n"
    os.kill(stopped := supervised.pid(), signal.SIGSTOP)
    try:
        _, err = process.communicate("go\n", timeout=3 * PATIENCE)
    finally:
        os.kill(stopped, signal.SIGCONT)
    assert (process.returncode, err) == (0, "")


def test_the_end_closes_no_connection(supervised):
    process = start(
        supervised,
        """
        import fsdp, sys
        c = fsdp.connect()
        print(c.names(), flush=True)
        sys.stdin.readline()
        """,
    )
    assert process.stdout.readline() == "[]\n"
    os.kill(stopped := supervised.pid(), signal.SIGSTOP)
    out, err = process.communicate("go\n", timeout=PATIENCE)
    os.kill(stopped, signal.SIGCONT)
    assert (out, err, process.returncode) == ("", "", 0)


def test_the_end_of_the_last_array_does_not_wait_for_the_broker(supervised):
    process = start(
        supervised,
        """
        import fsdp, numpy, sys
        c = fsdp.connect()
        a = c.put("a/x", numpy.zeros(3)).numpy()
        c.close()
        print("closed", flush=True)
        sys.stdin.readline()
        del a
        print("freed", flush=True)
        sys.stdin.readline()
        """,
    )
    assert process.stdout.readline() == "closed\n"
    os.kill(stopped := supervised.pid(), signal.SIGSTOP)
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "freed\n"
    os.kill(stopped, signal.SIGCONT)
    out, err = process.communicate("go\n", timeout=PATIENCE)
    assert (out, err, process.returncode) == ("", "", 0)


def test_a_process_may_end_after_the_broker(supervised):
    process = start(supervised, ENDING)
    assert process.stdout.readline() == "ready\n"
    supervised.process.send_signal(signal.SIGTERM)
    supervised.process.wait(PATIENCE)
    _, err = process.communicate("go\n", timeout=3 * PATIENCE)
    assert (process.returncode, err) == (0, "")


def test_a_killed_process_leaves_no_holds_or_memory(broker, c):
    c.put("a/x", bytes(1000))
    process = start(
        broker,
        """
        import fsdp, sys
        c = fsdp.connect()
        t = c["a/x"]; a = t.numpy()
        unpublished = c.alloc(1000, "u8")
        print("ready", flush=True)
        sys.stdin.readline()
        """,
    )
    assert process.stdout.readline() == "ready\n"
    assert process.pid in [holder["pid"] for holder in c.who("a/x")]
    before = c.status()["bytes_live"]
    process.kill()
    process.communicate()
    until(lambda: c.who("a/x") == [], "the dead process's holds are dropped")
    until(lambda: c.status()["bytes_live"] < before, "its memory is free")


def test_tensors_of_a_killed_producer_stay_published(broker, c):
    process = start(
        broker,
        """
        import fsdp, sys
        fsdp.connect().put("a/x", b"abc")
        print("ready", flush=True)
        sys.stdin.readline()
        """,
    )
    assert process.stdout.readline() == "ready\n"
    process.kill()
    process.communicate()
    assert bytes(memoryview(c["a/x"])) == b"abc"


def test_tensors_outlive_the_broker(supervised):
    with fsdp.connect(supervised.path) as client:
        array = client.put("a/x", b"abc").numpy()
        tensor = client["a/x"]
        supervised.kill()
        assert array.tobytes() == b"abc"
        assert bytes(memoryview(tensor)) == b"abc"
        # The library reconnects by itself, and nothing is lost.
        assert client.names() == ["a/x"]
        assert client.put("a/x", b"def").version == 2
        assert array.tobytes() == b"abc"


def test_a_forked_child_gets_an_error_and_can_connect(broker):
    assert run(
        broker,
        """
        import fsdp, os, warnings
        c = fsdp.default()
        t = c.put("a/fork", b"abc")
        if os.fork() == 0:
            try:
                c["a/fork"]
            except fsdp.Error as error:
                assert "fork" in str(error), error
            else:
                os._exit(2)
            try:
                memoryview(t)
            except fsdp.Error as error:
                assert "fork" in str(error), error
            else:
                os._exit(3)
            assert t.name == "a/fork"
            assert bytes(memoryview(fsdp.default()["a/fork"])) == b"abc"
            del c, t
            raise SystemExit
        assert os.wait()[1] == 0
        assert bytes(memoryview(t)) == b"abc"
        assert c["a/fork"].version == 1
        c.remove("a/fork")
        """,
    ) == (0, "", "")


def test_the_end_of_a_forked_child_does_not_affect_its_parent(broker, c):
    c.put("a/x", b"abc")
    assert run(
        broker,
        """
        import fsdp, os
        c = fsdp.connect()
        t = c["a/x"]; a = t.numpy()
        for _ in range(5):
            if os.fork() == 0:
                assert a.tobytes() == b"abc"
                del t, a, c
                raise SystemExit
            assert os.wait()[1] == 0
        assert [h["holds"] for h in c.who("a/x") if h["pid"] == os.getpid()] == [2]
        """,
    ) == (0, "", "")
