"""Tests tensors on a device of the fake driver. They are made, shared, and
passed on by DLPack, which lets the consumer's stream wait for the producer's.
"""

import ctypes
import os
import subprocess
import tempfile
import threading

import numpy
import pytest

import fsdp
from conftest import BUILD, PATIENCE, Broker, run, until

ARRAYS = [
    numpy.arange(6, dtype="f4").reshape(2, 3),
    numpy.arange(6).reshape(2, 3).T,
    numpy.array(7, dtype="i2"),
    numpy.empty((0, 3)),
]
NOT_READY = 600  # CUDA_ERROR_NOT_READY
HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)


@pytest.fixture(scope="module")
def broker():
    """A broker with the fake driver. This process and others load the same
    driver."""
    with (
        pytest.MonkeyPatch.context() as patch,
        tempfile.TemporaryDirectory(prefix="fsdp-gpu-", dir="/dev/shm") as devices,
    ):
        patch.setenv("FSDP_LIBCUDA", str(BUILD / "fakes" / "libcuda.so.1"))
        patch.setenv("FAKECUDA_DIR", devices)
        broker = Broker()
        patch.setenv("FSDP_SOCKET", broker.path)
        yield broker
        broker.stop()


@pytest.fixture(scope="module")
def gpu(broker):
    out = subprocess.run(
        [BUILD / "fsdpctl", "devices"], capture_output=True, text=True, check=True
    ).stdout
    return next(word for word in out.split() if word.startswith("GPU-"))


@pytest.fixture(scope="module")
def cuda(broker):
    """The driver, with the context that the library uses."""
    cuda, context = ctypes.CDLL(os.environ["FSDP_LIBCUDA"]), ctypes.c_void_p()
    assert cuda.cuInit(0) == 0
    assert cuda.cuDevicePrimaryCtxRetain(ctypes.byref(context), 0) == 0
    assert cuda.cuCtxPushCurrent_v2(context) == 0
    return cuda


class Stream:
    """A stream. Its work lasts until the test ends it."""

    def __init__(self, cuda):
        self.cuda, self.handle = cuda, ctypes.c_void_p()
        assert cuda.cuStreamCreate(ctypes.byref(self.handle), 1) == 0
        self.number = self.handle.value
        self.end = threading.Event()
        self.work = HOST_FUNCTION(lambda _: self.end.wait(6 * PATIENCE) and None)

    def begin(self):
        assert self.cuda.cuLaunchHostFunc(self.handle, self.work, None) == 0

    def is_done(self):
        r = self.cuda.cuStreamQuery(self.handle)
        assert r in (0, NOT_READY)
        return r == 0


@pytest.fixture
def streams(cuda):
    streams = Stream(cuda), Stream(cuda)
    yield streams
    for stream in streams:
        stream.end.set()
        assert cuda.cuStreamSynchronize(stream.handle) == 0


def bytes_of(cuda, tensor):
    """Returns the bytes at the address in the tensor's capsule."""
    pointer = ctypes.pythonapi.PyCapsule_GetPointer
    pointer.restype, pointer.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    capsule = tensor.__dlpack__()
    address = ctypes.c_uint64.from_address(pointer(capsule, b"dltensor"))
    copy = ctypes.create_string_buffer(tensor.nbytes)
    assert cuda.cuMemcpyDtoH_v2(copy, address, ctypes.c_size_t(tensor.nbytes)) == 0
    return copy.raw


@pytest.mark.parametrize("array", ARRAYS, ids=str)
def test_put_copies_an_array_to_the_device(c, gpu, cuda, array):
    tensor = c.put("d/x", array, device=gpu)
    assert tensor.shape == array.shape
    if array.size:
        assert bytes_of(cuda, tensor) == array.tobytes()


def test_a_tensor_can_be_read_in_another_process(broker, c, gpu):
    tensor = c.put("d/x", numpy.arange(6, dtype="f4"), device=gpu)
    assert (tensor.device, tensor.shape, tensor.dtype) == (gpu, (6,), "f32")
    status, out, err = run(
        broker,
        """
        import fsdp
        x = fsdp.connect()["d/x"]
        x.wait()
        print(x.device, x.shape, x.dtype, x.readonly, *x.__dlpack_device__())
        """,
    )
    assert (status, out) == (0, f"{gpu} (6,) f32 True 2 0\n"), err


def test_elements_on_a_device_are_available_only_by_dlpack(c, gpu):
    tensor = c.alloc((4,), "f32", device=gpu)
    tensor.publish("d/x")
    assert tensor.__dlpack_device__() == (2, 0)
    for look in numpy.asarray, memoryview, lambda one: one.numpy():
        with pytest.raises(BufferError, match="torch\\(\\) or __dlpack__\\(\\)"):
            look(tensor)
    for other in (1, 0), (2, 1):
        with pytest.raises(BufferError, match="the tensor is on device"):
            tensor.__dlpack__(dl_device=other)
    assert '"dltensor"' in repr(tensor.__dlpack__(dl_device=(2, 0)))


def test_the_stream_of_dlpack_waits_for_that_of_the_producer(c, gpu, streams):
    writer, reader = streams
    tensor = c.alloc((4,), "f32", device=gpu)
    writer.begin()
    tensor.publish("d/x", stream=writer.number)
    kept = [tensor.__dlpack__(stream=-1)]
    assert reader.is_done()
    kept.append(tensor.__dlpack__(stream=reader.number))
    assert not reader.is_done() and not writer.is_done()
    writer.end.set()
    until(reader.is_done, "the reader goes on")


def test_without_a_stream_the_default_stream_waits(c, gpu, cuda, streams):
    writer, _ = streams
    tensor = c.alloc((4,), "f32", device=gpu)
    writer.begin()
    tensor.publish("d/x", stream=writer.number)
    default = ctypes.c_void_p(1)
    assert cuda.cuStreamQuery(default) == 0
    kept = tensor.__dlpack__()
    assert cuda.cuStreamQuery(default) == NOT_READY
    writer.end.set()
    assert cuda.cuStreamSynchronize(default) == 0
    del kept


def test_get_takes_a_stream_that_waits(c, gpu, streams):
    writer, reader = streams
    tensor = c.alloc((4,), "f32", device=gpu)
    writer.begin()
    tensor.publish("d/x", stream=writer.number)
    with pytest.raises(fsdp.Timeout, match="the stream that writes it has not finished"):
        c.get("d/x")
    c.get("d/x", stream=reader.number)
    assert not reader.is_done()
    writer.end.set()
    until(reader.is_done, "the reader goes on")


def test_wait_has_this_thread_or_a_stream_wait(c, gpu, streams):
    writer, reader = streams
    tensor = c.alloc((4,), "f32", device=gpu)
    writer.begin()
    tensor.publish("d/x", stream=writer.number)
    with pytest.raises(fsdp.Timeout):
        tensor.wait(timeout=0)
    tensor.wait(reader.number)
    assert not reader.is_done()
    writer.end.set()
    tensor.wait(timeout=PATIENCE)
    until(reader.is_done, "the reader goes on")


def test_memory_lasts_until_the_stream_of_release_on_is_done(c, gpu, streams):
    def live():
        return c.status()["device_bytes_live"]

    reader, _ = streams
    before = live()
    tensors = [c.put(f"d/{i}", numpy.arange(4), device=gpu) for i in range(2)]
    size = (live() - before) // 2
    reader.begin()
    tensors[0].release_on(reader.number)
    tensors[1].release()
    assert not tensors[0].held
    c.remove(["d/0", "d/1"])
    until(lambda: live() == before + size, "the memory of the other one is free")
    assert not reader.is_done()
    reader.end.set()
    until(lambda: live() == before, "the memory is free")
