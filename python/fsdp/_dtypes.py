"""Names of dtypes: those of fsdp, numpy, torch and buffers."""

from . import _fsdp

#: Bytes of an element of each dtype, by name.
DTYPES = _fsdp.dtypes()

_WORDS = {
    "bool": "bool",
    "uint8": "u8",
    "int8": "i8",
    "uint16": "u16",
    "int16": "i16",
    "uint32": "u32",
    "int32": "i32",
    "uint64": "u64",
    "int64": "i64",
    "float16": "f16",
    "bfloat16": "bf16",
    "float32": "f32",
    "float64": "f64",
    "float8_e4m3fn": "f8_e4m3",
    "float8_e5m2": "f8_e5m2",
    "complex64": "c64",
    "complex128": "c128",
}

#: The names of numpy and torch for each dtype.
LONG_NAMES = {short: long for long, short in _WORDS.items()}

#: The dtypes that need ml_dtypes in numpy.
EXTENDED = ("bf16", "f8_e4m3", "f8_e5m2")


def name_of(dtype):
    """Return the name of a dtype, which is given as a name, or is numpy's or
    torch's."""
    if isinstance(dtype, str) and dtype in DTYPES:
        return dtype
    word = str(dtype).removeprefix("torch.")
    if word in _WORDS:
        return _WORDS[word]
    # This is a class such as numpy.float32 or ml_dtypes.bfloat16, or "<f4".
    word = getattr(dtype, "__name__", None)
    if word in _WORDS:
        return _WORDS[word]
    try:
        import numpy

        return _WORDS[numpy.dtype(dtype).name]
    except (ImportError, TypeError, KeyError):
        from ._errors import Invalid

        raise Invalid(
            f"there is no dtype {dtype!r}; fsdp.DTYPES lists them"
        ) from None


def numpy_dtype(name):
    """Return numpy's dtype. ml_dtypes has bf16 and the 8-bit floats."""
    import numpy

    if name not in EXTENDED:
        return numpy.dtype(LONG_NAMES[name])
    try:
        import ml_dtypes
    except ImportError:
        raise BufferError(
            f"numpy has no {name} without the package ml_dtypes; install it, "
            "or use torch()"
        ) from None
    return numpy.dtype(getattr(ml_dtypes, LONG_NAMES[name]))
