"""The part of fsdp_comm.h that the tests need, by ctypes: one rank on host
memory.
"""

import ctypes
import os
from ctypes import POINTER, byref, c_bool, c_char_p, c_double, c_int32, c_int64
from ctypes import c_size_t, c_uint32, c_uint64, c_void_p

import torch

import fsdp
from fsdp._dtypes import LONG_NAMES, name_of

_lib = ctypes.CDLL(os.path.join(os.path.dirname(fsdp.__file__), "libfsdp.so.0"))
_lib.fsdp_error.restype = c_char_p
_lib.fsdp_input_data.restype = c_void_p
_lib.fsdp_input_data.argtypes = [c_void_p, c_size_t]

_NUMBERS = {name: number for number, name in enumerate(fsdp.DTYPES, 1)}
_NAMES = {number: name for name, number in _NUMBERS.items()}
_PATIENCE = 60_000  # ms


class Sized(ctypes.Structure):
    def __init__(self, **fields):
        super().__init__(struct_size=ctypes.sizeof(self), **fields)


class ConnectOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("path", c_char_p),
        ("budget", c_uint64),
        ("reconnect_ms", c_int32),
        ("interrupted", c_void_p),
        ("data", c_void_p),
    ]


class CommOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("gid", c_uint32),
        ("mode", c_uint32),
        ("n_shards", c_uint32),
        ("timeout_ms", c_int32),
        ("ttl_ms", c_uint64),
        ("limiter", c_uint32),
        ("limit", c_uint32),
        ("limit_bytes", c_uint64),
        ("n_inputs", c_uint32),
        ("device", c_void_p),
        ("n_local", c_uint32),
        ("nccl_id", c_void_p),
        ("executor", c_uint32),
        ("memory", c_uint32),
    ]


class ParamSpec(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("name", c_char_p),
        ("dtype", c_uint32),
        ("n_dims", c_uint32),
        ("shape", c_int64 * 8),
        ("shard_dim", c_int32),
        ("is_frozen", c_bool),
    ]


class Policy(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("param_dtype", c_uint32),
        ("input_dtype", c_uint32),
        ("reduce_dtype", c_uint32),
        ("layout", c_uint32),
        ("gather_cap_mb", c_double),
        ("reduce_cap_mb", c_double),
        ("stays_unsharded", c_bool),
        ("is_offloaded", c_bool),
    ]


class Shard(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_uint32),
        ("n_dims", c_uint32),
        ("shape", c_int64 * 8),
        ("start", c_int64),
        ("numel", c_uint64),
        ("current", c_void_p),
        ("next", c_void_p),
        ("grad", c_void_p),
    ]


class Param(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("dtype", c_uint32),
        ("n_dims", c_uint32),
        ("shape", c_int64 * 8),
        ("numel", c_uint64),
        ("data", c_void_p),
    ]


class ReduceOptions(Sized):
    _fields_ = [
        ("struct_size", c_size_t),
        ("accumulates", c_bool),
        ("no_all_reduce", c_bool),
        ("is_sum_forced", c_bool),
        ("has_factor", c_bool),
        ("factor", c_double),
        ("stream", c_void_p),
    ]


class Work(ctypes.Structure):
    _fields_ = [
        ("comm", c_void_p),
        ("group", c_void_p),
        ("kind", c_uint32),
        ("sequence", c_uint64),
    ]


def call(name, *args):
    status = getattr(_lib, name)(*args)
    assert status == 0, f"{name}: {_lib.fsdp_error().decode()}"


def number_of(dtype):
    return _NUMBERS[name_of(dtype)] if dtype is not None else 0


def tensor_at(address, view):
    """Returns a copy of the elements at the address, with the dtype and shape
    of the view."""
    dtype = getattr(torch, LONG_NAMES[_NAMES[view.dtype]])
    shape = list(view.shape[: view.n_dims])
    if not address or not view.numel:
        return torch.empty(shape, dtype=dtype)
    data = (ctypes.c_uint8 * (view.numel * dtype.itemsize)).from_address(address)
    return torch.frombuffer(bytearray(data), dtype=dtype).reshape(shape)


def write(address, tensor):
    raw = bytes(tensor.contiguous().view(torch.uint8).flatten().tolist())
    ctypes.memmove(address, raw, len(raw))


class Rank:
    """A rank with one group; `params` are whole tensors by name."""

    def __init__(self, path, name, world, rank, params, n_shards=0, dims=None, **dtypes):
        self.client, self.comm, self.group = c_void_p(), c_void_p(), c_void_p()
        options = ConnectOptions(path=path.encode())
        call("fsdp_connect", byref(options), byref(self.client))
        options = CommOptions(n_shards=n_shards)
        call("fsdp_comm_join", self.client, c_char_p(name.encode()), c_uint32(world),
             c_uint32(rank), byref(options), byref(self.comm))  # fmt: skip
        self.params = params
        dims = dims or {}
        specs = [
            ParamSpec(
                name=key.encode(),
                dtype=number_of(value.dtype),
                n_dims=value.dim(),
                shape=(c_int64 * 8)(*value.shape),
                shard_dim=dims.get(key, 0),
            )
            for key, value in params.items()
        ]
        policy = Policy(**{key: number_of(value) for key, value in dtypes.items()})
        call("fsdp_group_register", self.comm, c_char_p(b"g"),
             (ParamSpec * len(specs))(*specs), c_size_t(len(specs)), byref(policy),
             byref(self.group))  # fmt: skip

    def wait(self, work):
        call("fsdp_wait", byref(work), c_int32(_PATIENCE))

    def shard(self, i):
        shard = Shard()
        call("fsdp_shard", self.group, c_size_t(i), byref(shard))
        return shard

    def commit(self, shards):
        """Writes this rank's shards of all parameters, and commits step 1."""
        for i, shard in enumerate(shards):
            write(self.shard(i).next, shard)
        work = Work()
        call("fsdp_commit", self.comm, c_uint64(1), byref(work))
        self.wait(work)

    def gathered(self):
        work = Work()
        call("fsdp_unshard", self.group, byref(work))
        self.wait(work)
        whole = []
        for i in range(len(self.params)):
            param = Param()
            call("fsdp_param", self.group, c_size_t(i), byref(param))
            whole.append(tensor_at(param.data, param))
        call("fsdp_reshard", self.group, c_uint32(0))
        return whole

    def reduced(self, grads, **options):
        """Reduces the gradients of all ranks. Returns this rank's shards of the
        result."""
        call("fsdp_input", self.group, c_int32(_PATIENCE))
        for i, grad in enumerate(grads):
            write(_lib.fsdp_input_data(self.group, i), grad)
        work = Work()
        call("fsdp_reduce", self.group, byref(ReduceOptions(**options)), byref(work))
        self.wait(work)
        shards = [self.shard(i) for i in range(len(grads))]
        return [tensor_at(shard.grad, shard) for shard in shards]

    def leave(self):
        call("fsdp_comm_leave", self.comm)
        call("fsdp_close", self.client)
