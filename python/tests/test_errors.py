import asyncio
import errno
import pickle
import shutil
import subprocess
import sys

import pytest

import fsdp
from conftest import run


@pytest.mark.parametrize(
    "number, kind, also",
    [
        (errno.ENOENT, fsdp.NotFound, KeyError),
        (errno.EEXIST, fsdp.Exists, FileExistsError),
        (errno.ETIMEDOUT, fsdp.Timeout, TimeoutError),
        (errno.ENOMEM, fsdp.NoRoom, MemoryError),
        (errno.EDQUOT, fsdp.NoRoom, MemoryError),
        (errno.EACCES, fsdp.Denied, PermissionError),
        (errno.EPERM, fsdp.Denied, PermissionError),
        (errno.ECONNREFUSED, fsdp.Disconnected, ConnectionError),
        (errno.ECONNRESET, fsdp.Disconnected, ConnectionError),
        (errno.ECONNABORTED, fsdp.Aborted, ConnectionAbortedError),
        (errno.ESTALE, fsdp.Gone, ReferenceError),
        (errno.EOWNERDEAD, fsdp.Gone, ReferenceError),
        (errno.ENODATA, fsdp.Ended, EOFError),
        (errno.EPIPE, fsdp.Left, BrokenPipeError),
        (errno.EINVAL, fsdp.Invalid, ValueError),
        (errno.ERANGE, fsdp.Invalid, ValueError),
        (errno.EOVERFLOW, fsdp.Invalid, ValueError),
        (errno.ENAMETOOLONG, fsdp.Invalid, ValueError),
        (errno.EPROTO, fsdp.Error, Exception),
    ],
)
def test_each_error_is_also_an_error_of_python(number, kind, also):
    error = fsdp._errors.make(number, "a sentence")
    assert type(error) is kind
    assert isinstance(error, (fsdp.Error, also))
    assert isinstance(error, also)
    assert error.errno == number
    assert str(error) == "a sentence"


def test_a_missing_name_is_a_key_error_with_a_message(c):
    with pytest.raises(KeyError) as caught:
        c["a/x"]
    assert str(caught.value) == 'there is no tensor "a/x" yet; give a timeout to wait for it'
    assert caught.value.errno == errno.ENOENT


@pytest.mark.parametrize("before", ["", "x"])
def test_an_error_may_quote_a_text_that_does_not_fit(c, before):
    long = before + "é" * 1000
    with pytest.raises(fsdp.Error, match=f"fsdpd at {before}é+$"):
        fsdp.connect(long)
    with pytest.raises(fsdp.Invalid, match=f'no dtype "{before}é+\ufffd?$'):
        c._alloc([((1,), long)], None, 0, 0, 0)


def test_tensors_do_not_have_names_of_bundles(c):
    for call in c.get, c.__getitem__, lambda name: c.put(name, b"1"):
        with pytest.raises(fsdp.Invalid, match="ends in '/', as only .* of bundles"):
            call("a/")
    with pytest.raises(KeyError, match='no bundle "a/" yet; give a timeout'):
        c.bundle("a/")


def test_an_error_about_a_name_starts_with_the_operation(c):
    with pytest.raises(fsdp.Invalid, match='^cannot get a bundle: name "a//" has a component'):
        c.bundle("a//")


@pytest.mark.parametrize("seconds", [-1, -0.001, float("nan")])
def test_a_negative_time_is_refused(c, seconds):
    for call in (
        lambda: c.put("a/x", b"1", ttl=seconds),
        lambda: c.stage("a/", ttl=seconds),
        lambda: c.get("a/x", timeout=seconds),
        lambda: asyncio.run(c.aget("a/x", timeout=seconds)),
    ):
        with pytest.raises(fsdp.Invalid, match="^a time must be 0 or more seconds"):
            call()


def test_an_infinite_time_is_no_limit(c):
    inf = float("inf")
    tensor = c.put("a/x", b"1", ttl=inf)
    tensor.wait(timeout=inf)
    c.channel("a/c", "producer", capacity=64, timeout=inf).close()
    assert c.get("a/x", timeout=inf).name == "a/x"


def test_a_taken_name_is_refused(c):
    c.put("a/x", b"1")
    with pytest.raises(FileExistsError, match=r"a/x.*Python: replace=True"):
        c.put("a/x", b"2", replace=False)
    with c.stage("a/b/") as stage:
        stage.put("x", b"1")
    with pytest.raises(FileExistsError, match=r"a/b/.*Python: replace=True"):
        c.stage("a/b/")


def test_a_forked_child_is_told_to_connect(broker):
    status, out, err = run(
        broker,
        """
        import fsdp, os
        c = fsdp.connect()
        if os.fork() == 0:
            try:
                c.names()
            except fsdp.Error as error:
                print(error, flush=True)
            os._exit(0)
        os.wait()
        """,
    )
    assert (status, err) == (0, "")
    assert "this process was forked after" in out and "Python: fsdp.connect()" in out


def test_a_missing_broker_is_an_error(tmp_path):
    with pytest.raises(fsdp.Disconnected, match="fsdpd"):
        fsdp.connect(tmp_path / "nothing")


def test_too_much_memory_is_a_memory_error(broker):
    with fsdp.connect(broker.path, budget=1 << 20) as client:
        with pytest.raises(MemoryError):
            client.alloc(1 << 21, "u8", timeout=0)


def test_an_error_can_be_pickled():
    error = pickle.loads(pickle.dumps(fsdp._errors.make(errno.ENOENT, "gone")))
    assert type(error) is fsdp.NotFound
    assert (str(error), error.errno) == ("gone", errno.ENOENT)


def test_an_interpreter_without_a_gil_is_refused():
    code = "import sys; sys.abiflags += 't'; import fsdp"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 1
    assert "ImportError: fsdp needs an interpreter with a GIL" in done.stderr


def test_sources_without_the_compiled_module_say_what_to_build(tmp_path):
    (tmp_path / "fsdp").mkdir()
    shutil.copy(fsdp.__file__, tmp_path / "fsdp")
    done = subprocess.run(
        [sys.executable, "-c", "import fsdp"], capture_output=True, cwd=tmp_path, text=True
    )
    assert done.returncode == 1
    assert f"ImportError: cannot import fsdp: {tmp_path}/fsdp has no compiled" in done.stderr
    assert "build/release/python" in done.stderr
