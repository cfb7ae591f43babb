import importlib.util
import io
import sys

import numpy as np
import pytest

import fsdp

PLAIN = {
    "bool": "bool",
    "u8": "uint8",
    "i8": "int8",
    "u16": "uint16",
    "i16": "int16",
    "u32": "uint32",
    "i32": "int32",
    "u64": "uint64",
    "i64": "int64",
    "f16": "float16",
    "f32": "float32",
    "f64": "float64",
    "c64": "complex64",
    "c128": "complex128",
}
EXTENDED = {
    "bf16": "bfloat16",
    "f8_e4m3": "float8_e4m3fn",
    "f8_e5m2": "float8_e5m2",
}
HAS_ML_DTYPES = importlib.util.find_spec("ml_dtypes") is not None


def test_the_matrix_has_all_dtypes():
    assert set(PLAIN) | set(EXTENDED) == set(fsdp.DTYPES)
    assert len(fsdp.DTYPES) == 17


@pytest.mark.parametrize("shape", [(), (0,), (3,), (2, 3), (2, 0, 4)], ids=str)
@pytest.mark.parametrize("dtype", PLAIN)
def test_each_dtype_and_shape_round_trips(c, dtype, shape):
    source = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(PLAIN[dtype])
    tensor = c.put("a/x", source)
    assert tensor.dtype == dtype
    array = tensor.numpy()
    assert array.dtype == source.dtype
    assert array.shape == shape
    assert (array == source).all()
    # An empty array may be writeable, because it has no elements to write.
    assert array.flags.writeable == (array.size == 0)


@pytest.mark.parametrize("dtype", PLAIN)
def test_strided_views_and_offsets(c, dtype):
    base = c.alloc((4, 6), dtype)
    base.numpy()[:] = np.arange(24).reshape(4, 6).astype(PLAIN[dtype])
    size = fsdp.DTYPES[dtype]
    view = base.view((2, 3), strides=(12, 2), offset=size)
    expected = np.arange(24).reshape(4, 6).astype(PLAIN[dtype])[::2, 1::2]
    assert (view.numpy() == expected).all()
    assert (c.put("a/copy", view).numpy() == expected).all()


@pytest.mark.parametrize("dtype", EXTENDED)
def test_a_dtype_without_a_buffer_format_is_refused(c, dtype):
    tensor = c.alloc((3,), dtype)
    with pytest.raises(BufferError, match=dtype):
        memoryview(tensor)


@pytest.mark.parametrize("dtype", EXTENDED)
def test_without_ml_dtypes_the_error_names_a_remedy(c, dtype, monkeypatch):
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    with pytest.raises(BufferError, match="ml_dtypes"):
        c.alloc((3,), dtype).numpy()


@pytest.mark.skipif(not HAS_ML_DTYPES, reason="ml_dtypes is not installed")
@pytest.mark.parametrize("shape", [(), (0,), (2, 3)], ids=str)
@pytest.mark.parametrize("dtype", EXTENDED)
def test_ml_dtypes_round_trip(c, dtype, shape):
    import ml_dtypes

    kind = getattr(ml_dtypes, EXTENDED[dtype])
    source = np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(kind)
    tensor = c.put("a/x", source)
    assert tensor.dtype == dtype
    assert tensor.numpy().dtype == kind
    assert (tensor.numpy() == source).all()


def test_the_array_is_the_memory_itself(c):
    tensor = c.alloc((4,), "f32")
    array = tensor.numpy()
    array[:] = [1, 2, 3, 4]
    assert np.asarray(tensor).__array_interface__["data"][0] == (
        array.__array_interface__["data"][0]
    )
    tensor.publish("a/x")
    assert c["a/x"].numpy().tolist() == [1, 2, 3, 4]


def test_a_published_array_cannot_be_written(c):
    array = c.put("a/x", np.arange(3)).numpy()
    with pytest.raises(ValueError):
        array[0] = 1
    with pytest.raises(ValueError):
        array.flags.writeable = True


def test_writing_a_private_array_does_not_change_the_tensor(c):
    tensor = c.put("a/x", np.arange(3))
    array = tensor.numpy(private=True)
    array[:] = 9
    assert tensor.numpy().tolist() == [0, 1, 2]


def test_asarray_converts_on_request(c):
    tensor = c.put("a/x", np.arange(3, dtype="i4"))
    assert np.asarray(tensor, dtype="f8").dtype == np.float64
    assert np.array(tensor).flags.writeable


def test_from_dlpack_shares_memory(c):
    tensor = c.put("a/x", np.arange(3.0))
    array = np.from_dlpack(tensor)
    assert array.tolist() == [0, 1, 2]
    assert np.shares_memory(array, tensor.numpy())
    assert not array.flags.writeable


def test_dlpack_refuses_unsupported_options(c):
    tensor = c.put("a/x", np.arange(3.0))
    assert tensor.__dlpack_device__() == (1, 0)
    with pytest.raises(BufferError):
        tensor.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        tensor.__dlpack__(dl_device=(2, 0))


def test_capsules_have_the_requested_version(c):
    tensor = c.put("a/x", np.arange(3.0))
    assert '"dltensor"' in repr(tensor.__dlpack__())
    assert '"dltensor"' in repr(tensor.__dlpack__(max_version=(0, 8)))
    assert '"dltensor_versioned"' in repr(tensor.__dlpack__(max_version=(1, 1)))


def test_buffers_have_the_requested_form(c):
    base = c.alloc((4, 4), "u8")
    column = base.view((4,), strides=(4,))
    assert memoryview(column).strides == (4,)
    with pytest.raises(BufferError, match="contiguous"):
        np.frombuffer(column, dtype=np.uint8)
    assert np.frombuffer(base, dtype=np.uint8).shape == (16,)
    with pytest.raises(TypeError, match="read-write"):
        io.BytesIO(b"xyz").readinto(c.put("a/x", b"abc"))
    io.BytesIO(b"xyz").readinto(base)
    assert bytes(memoryview(base).cast("B")[:3]) == b"xyz"
