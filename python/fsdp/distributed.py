"""The backend "fsdpd" of torch.distributed, for tensors in host memory.

>>> import fsdp.distributed, torch.distributed as dist   # doctest: +SKIP
>>> dist.init_process_group("fsdpd")                      # doctest: +SKIP

Importing this module registers it. The ranks of a node pass their tensors
through memory that they share; docs/python.md has the rest.
"""

import atexit
import logging
import os
import time
import types
import uuid
import weakref

import torch
import torch.distributed as dist
from torch.distributed._functional_collectives import AsyncCollectiveTensor

from . import _fsdp
from ._default import default
from ._dense import check_dense
from ._dtypes import DTYPES, LONG_NAMES
from ._errors import Error, Invalid
from ._gloo_message import GlooMessage
from ._messages import Mail
from ._nodes import Comm, n_lanes
from ._shared import PURPOSES, Pool
from ._work import BackendError as BackendError
from ._work import Line, Work

NAME = "fsdpd"
_MAX_RANKS = 64
_PATIENCE = 1.1  # time-out within a node, divided by the time-out between nodes

_NUMBERS = {
    getattr(torch, LONG_NAMES[name], None): number
    for number, name in enumerate(DTYPES, 1)
}
_BYTES = _NUMBERS[torch.uint8]
_CANNOT_REDUCE = "cannot reduce {}: fsdpd has no sums of it; convert it to another dtype"
_REDUCTIONS = ("SUM", "AVG", "PRODUCT", "MIN", "MAX", "BAND", "BOR", "BXOR")


def _reduction_of(operation):
    for number, name in enumerate(_REDUCTIONS):
        if operation == getattr(dist.ReduceOp, name):
            return number
    raise Invalid(f"fsdpd has no reduction {operation}; it has {', '.join(_REDUCTIONS)}")


def fold(operation, tensors, output):
    """Reduce tensors of this process as a collective would reduce those of ranks."""
    number = _NUMBERS.get(output.dtype)
    if number is None:
        raise Invalid(_CANNOT_REDUCE.format(output.dtype))
    addresses = [tensor.data_ptr() for tensor in tensors]
    how = _reduction_of(operation)
    _fsdp.fold(number, how, addresses, output.data_ptr(), output.numel())


# --- tensors ------------------------------------------------------------------


def _wraps(tensor):
    return type(tensor) is not torch.Tensor and hasattr(tensor, "__tensor_flatten__")


def _parts(tensor):
    """The dense tensors of one that wraps others, as some quantized weights do."""
    if not _wraps(tensor):
        return [tensor]
    if isinstance(tensor, AsyncCollectiveTensor):
        return _parts(tensor.trigger_wait())
    if hasattr(tensor, "to_local"):
        raise Invalid("a DTensor is no tensor of this rank alone; give its to_local()")
    names, _ = tensor.__tensor_flatten__()
    return [part for name in names for part in _parts(getattr(tensor, name))]


def _together(*tensors):
    """The first parts of all, then the second ones, and so on."""
    parts = [_parts(tensor) for tensor in tensors]
    if len({*map(len, parts)}) > 1:
        raise Invalid("the tensors of a call must wrap the same number of tensors")
    return list(zip(*parts))


def _check_sum(*tensors):
    for tensor in filter(_wraps, tensors):
        for part in _parts(tensor):
            if part.dtype != tensor.dtype or part.shape != tensor.shape:
                raise Invalid(
                    f"cannot reduce a {type(tensor).__name__}: the sum of what it wraps "
                    f"need not be its sum; convert it to a plain tensor"
                )


def _check(*tensors):
    for tensor in tensors:
        is_dense = tensor.layout is torch.strided and not tensor.is_quantized
        if not is_dense or tensor.is_nested or tensor.device.type != "cpu":
            check_dense(tensor, "send or reduce")
            raise Invalid(
                f"fsdpd takes tensors in host memory; this one is on {tensor.device}"
            )
        if tensor.dtype != tensors[0].dtype:
            raise Invalid(
                f"the tensors must have one dtype; these are {tensors[0].dtype} and "
                f"{tensor.dtype}"
            )


def _only(tensors):
    if len(tensors) != 1:
        raise Invalid(f"a call takes one tensor for each rank, not {len(tensors)}")
    return tensors[0]


class _Job:
    """One call of libfsdp. It works on copies of tensors that are not
    contiguous, and copies results back."""

    def __init__(self, call, *tensors):
        _check(*tensors)
        dtype = tensors[0].dtype
        self._call, self._dtype, self._width = call, _NUMBERS.get(dtype), 1
        if self._dtype is None:  # it can be copied, but not reduced
            if "reduce" in call:
                raise Invalid(_CANNOT_REDUCE.format(dtype))
            self._dtype, self._width = _BYTES, dtype.itemsize
        self._kept, self._copies, self._args = list(tensors), [], ()

    def _part(self, tensor):
        return tensor.data_ptr(), tensor.numel() * self._width

    def take(self, tensor):
        """Return (address, count) of an input."""
        if not tensor.is_contiguous():
            tensor = tensor.contiguous()
            self._kept.append(tensor)
        return self._part(tensor)

    def give(self, tensor):
        """Return (address, count) of an output."""
        if not tensor.is_contiguous():
            copy = tensor.contiguous()
            self._copies.append((tensor, copy))
            tensor = copy
        return self._part(tensor)

    def with_args(self, *args):
        self._args = args
        return self

    def run(self, comm):
        return getattr(comm, self._call)(self._dtype, *self._args)

    def back(self):
        """Copy the results back when the call is complete."""
        with torch.no_grad():
            for tensor, copy in self._copies:
                tensor.copy_(copy)


def _cut(tensor, n):
    """Divide a tensor into n equal parts."""
    if tensor.numel() % n:
        raise Invalid(f"{tensor.numel()} elements cannot be divided among {n} ranks")
    if not tensor.is_contiguous():
        raise Invalid("a tensor with the parts of all ranks must be contiguous")
    return tensor.view(-1).chunk(n) if tensor.numel() else [tensor] * n


def _split(tensor, sizes, n):
    """Divide a tensor into rows for each rank, equally if there are no sizes."""
    if not sizes:
        if tensor.size(0) % n:
            raise Invalid(f"{tensor.size(0)} rows cannot be divided among {n} ranks")
        sizes = [tensor.size(0) // n] * n
    if len(sizes) != n or sum(sizes) != tensor.size(0):
        raise Invalid(
            f"the split sizes {sizes} must be {n} numbers with the sum {tensor.size(0)}"
        )
    if not tensor.is_contiguous():
        raise Invalid("a tensor that is split must be contiguous")
    return tensor.split(list(sizes))


def _message(tensors):
    parts = _parts(_only(tensors))
    if len(parts) != 1:
        raise Invalid(
            f"a message takes one tensor, and this one wraps {len(parts)}; send them one "
            f"after another"
        )
    return parts[0]


def _check_tag(tag):
    if not 0 <= tag < 2**64:
        raise Invalid(f"the tag {tag} is not from 0 to 2**64 - 1")


def _pairs(outputs, inputs):
    if len(outputs) != len(inputs):
        raise Invalid(f"{len(outputs)} outputs were given for {len(inputs)} inputs")
    return zip(outputs, inputs)


# --- the group ----------------------------------------------------------------


class ProcessGroup(dist.ProcessGroup):
    """The ranks of one node. init_process_group() and new_group() make it, with
    one communicator for collectives and one for messages."""

    def __init__(self, comm, mail, rank, world_size, seconds):
        super().__init__(rank, world_size)
        self._rank, self._world_size = rank, world_size
        self._name = self._desc = ""
        self.seconds = seconds
        self.pools = {purpose: Pool(purpose) for purpose in PURPOSES}
        self._comm, self._line, self._mail = comm, Line(), mail
        _groups.add(self)

    def _add(self, jobs, results, opts):
        def run():
            for job in jobs:
                job.run(self._comm)
                job.back()

        return self._line.add(run, results, opts.asyncOp)

    def _per_rank(self, tensors):
        if len(tensors) != self._world_size:
            raise Invalid(
                f"there must be one tensor for each of the {self._world_size} ranks, "
                f"not {len(tensors)}"
            )
        return tensors

    # --- what torch asks for --------------------------------------------------

    def getBackendName(self):
        return NAME

    name = _get_backend_name = getBackendName

    def rank(self):
        return self._rank

    getRank = rank

    def size(self):
        return self._world_size

    getSize = size

    def getGroupName(self):
        return self._name

    group_name = property(getGroupName)

    def getGroupDesc(self):
        return self._desc

    group_desc = property(getGroupDesc)

    def _set_group_name(self, name):
        self._name = name

    setGroupName = _set_group_name

    def _set_group_desc(self, desc):
        self._desc = desc

    setGroupDesc = _set_group_desc

    @property
    def _device_types(self):
        return [torch.device("cpu")]

    def __repr__(self):
        return f"fsdp.distributed.ProcessGroup(rank {self._rank} of {self._world_size})"

    # --- collectives ----------------------------------------------------------

    def broadcast(self, tensors, opts=None):
        opts = opts or dist.BroadcastOptions()
        jobs = []
        for tensor in _parts(_only(tensors)):
            job = _Job("broadcast", tensor)
            jobs.append(job.with_args(*job.give(tensor), opts.rootRank))
        return self._add(jobs, tensors, opts)

    def _reduced(self, call, tensors, opts, *root):
        """Reduce each tensor in place."""
        how, jobs = _reduction_of(opts.reduceOp), []
        _check_sum(*tensors)
        for tensor in (part for whole in tensors for part in _parts(whole)):
            job = _Job(call, tensor)
            data, count = job.give(tensor)
            jobs.append(job.with_args(how, data, data, count, *root))
        return self._add(jobs, tensors, opts)

    def allreduce(self, tensors, opts=None):
        _only(tensors)
        return self._reduced("all_reduce", tensors, opts or dist.AllreduceOptions())

    def allreduce_coalesced(self, tensors, opts=None):
        opts = opts or dist.AllreduceCoalescedOptions()
        return self._reduced("all_reduce", tensors, opts)

    def reduce(self, tensors, opts=None):
        _only(tensors)
        opts = opts or dist.ReduceOptions()
        return self._reduced("reduce", tensors, opts, opts.rootRank)

    def _gather_parts(self, outputs, tensor):
        return [self._all_gather(o, t) for *o, t in _together(*outputs, tensor)]

    def _all_gather(self, outputs, tensor):
        job = _Job("all_gather", tensor, *self._per_rank(outputs))
        return job.with_args(*job.take(tensor), [job.give(o) for o in outputs])

    def allgather(self, outputs, inputs, opts=None):
        jobs = self._gather_parts(_only(outputs), _only(inputs))
        return self._add(jobs, outputs, opts or dist.AllgatherOptions())

    def allgather_coalesced(self, outputs, inputs, opts=None):
        # Each output is a list with one tensor for each input.
        per_input = list(zip(*self._per_rank(outputs), strict=True))
        jobs = [
            job for pair in _pairs(per_input, inputs) for job in self._gather_parts(*pair)
        ]
        return self._add(jobs, outputs, opts or dist.AllgatherOptions())

    def all_gather_single_coalesced(self, outputs, inputs, opts=None):
        jobs = [
            self._all_gather(_cut(output, self._world_size), tensor)
            for pair in _pairs(outputs, inputs)
            for output, tensor in _together(*pair)
        ]
        return self._add(jobs, outputs, opts or dist.AllgatherOptions())

    def all_gather_single(self, output, tensor, opts=None):
        return self.all_gather_single_coalesced([output], [tensor], opts)

    def gather(self, outputs, inputs, opts=None):
        opts = opts or dist.GatherOptions()
        parts, jobs = [], []
        if self._rank == opts.rootRank:
            parts = self._per_rank(_only(outputs))
        for tensor, *outs in _together(_only(inputs), *parts):
            job = _Job("gather", tensor, *outs)
            taken = job.take(tensor)
            given = [job.give(out) for out in outs] or None
            jobs.append(job.with_args(*taken, given, opts.rootRank))
        return self._add(jobs, outputs, opts)

    def scatter(self, outputs, inputs, opts=None):
        opts = opts or dist.ScatterOptions()
        parts, jobs = [], []
        if self._rank == opts.rootRank:
            parts = self._per_rank(_only(inputs))
        for tensor, *ins in _together(_only(outputs), *parts):
            job = _Job("scatter", tensor, *ins)
            taken = [job.take(part) for part in ins] or None
            jobs.append(job.with_args(taken, *job.give(tensor), opts.rootRank))
        return self._add(jobs, outputs, opts)

    def _reduce_scatter(self, output, inputs, opts):
        job = _Job("reduce_scatter", output, *self._per_rank(inputs))
        taken = [job.take(part) for part in inputs]
        return job.with_args(_reduction_of(opts.reduceOp), taken, *job.give(output))

    def reduce_scatter(self, outputs, inputs, opts=None):
        opts = opts or dist.ReduceScatterOptions()
        output, inputs = _only(outputs), _only(inputs)
        _check_sum(output, *inputs)
        jobs = [
            self._reduce_scatter(o, i, opts) for o, *i in _together(output, *inputs)
        ]
        return self._add(jobs, outputs, opts)

    def reduce_scatter_single_coalesced(self, outputs, inputs, opts=None):
        opts = opts or dist.ReduceScatterOptions()
        _check_sum(*outputs, *inputs)
        jobs = [
            self._reduce_scatter(output, _cut(tensor, self._world_size), opts)
            for pair in _pairs(outputs, inputs)
            for output, tensor in _together(*pair)
        ]
        return self._add(jobs, outputs, opts)

    def reduce_scatter_single(self, output, tensor, opts=None):
        return self.reduce_scatter_single_coalesced([output], [tensor], opts)

    def _all_to_all(self, outputs, inputs):
        job = _Job("all_to_all", *outputs, *inputs)
        taken = [job.take(part) for part in inputs]
        return job.with_args(taken, [job.give(part) for part in outputs])

    def alltoall(self, outputs, inputs, opts=None):
        n = self._world_size
        both = _together(*self._per_rank(outputs), *self._per_rank(inputs))
        jobs = [self._all_to_all(parts[:n], parts[n:]) for parts in both]
        return self._add(jobs, outputs, opts or dist.AllToAllOptions())

    def all_to_all_single(self, output, tensor, output_sizes, sizes, opts=None):
        n = self._world_size
        jobs = [
            self._all_to_all(_split(o, output_sizes, n), _split(t, sizes, n))
            for o, t in _together(output, tensor)
        ]
        return self._add(jobs, [output], opts or dist.AllToAllOptions())

    def barrier(self, opts=None):
        opts = opts or dist.BarrierOptions()
        return self._line.add(lambda: self._comm.barrier(None), [], opts.asyncOp)

    # The names before torch 2.13.
    _allgather_base = all_gather_single
    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _reduce_scatter_base = reduce_scatter_single
    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    alltoall_base = all_to_all_single

    # --- messages -------------------------------------------------------------

    def send(self, tensors, rank, tag=0):
        tensor = _message(tensors)
        _check_tag(tag)
        job = _Job("send", tensor)
        job.with_args(*job.take(tensor), rank, tag)
        late = f"rank {rank} has not received a message of tag {tag}"
        return self._mail.add(job, tensors, late)

    def recv(self, tensors, rank, tag=0):
        tensor = _message(tensors)
        _check_tag(tag)
        job = _Job("receive", tensor)
        job.with_args(*job.give(tensor), rank, tag)
        who = "no rank has" if rank is None else f"rank {rank} has not"
        return self._mail.add(job, tensors, f"{who} sent a message of tag {tag}")

    def recv_anysource(self, tensors, tag=0):
        return self.recv(tensors, None, tag)

    # --- the end --------------------------------------------------------------

    def shutdown(self):
        """Complete all calls that were made, and leave."""
        for pool in self.pools.values():
            pool.clear()
        self._line.close()
        self._mail.close()
        self._comm.leave()
        self._mail.leave()

    def _stop(self):
        """Stop the threads. Calls that are not complete are abandoned."""
        if self._line.is_busy():
            self._comm.abort()
        self._line.close()
        self._mail.close()

    def abort(self):
        """Let calls under way fail soon, here and on the other ranks."""
        self._comm.abort()
        self._mail.abort()


class SeveralNodes(ProcessGroup):
    """The ranks of several nodes. gloo sends their messages."""

    def __init__(self, comm, rank, world_size, seconds):
        super().__init__(comm, Mail(comm, seconds), rank, world_size, seconds)
        self.pools = {}  # they share no memory

    def _message(self, call, rank, tensors, *args):
        whole = self._comm.whole
        if whole is None or self._comm.is_stopped:
            why = "was destroyed" if whole is None else "has failed or was aborted"
            raise BackendError(f"cannot send or receive: the group {why}; make a new one")
        work = getattr(whole, call)(tensors, *args)
        return GlooMessage(self._comm, work, tensors, rank)

    def send(self, tensors, rank, tag=0):
        return self._message("send", rank, tensors, rank, tag)

    def recv(self, tensors, rank, tag=0):
        if rank is None:
            return self._message("recv_anysource", None, tensors, tag)
        return self._message("recv", rank, tensors, rank, tag)


_PRIVATE = ("_FrameAction", "_FrameExecStrategy", "set_code_exec_strategy")


def _hide_from_compile(*classes):
    """Have torch.compile() run the methods of these classes as they are. DDP calls
    the methods from C++. If the compiler begins to trace in one of them, it knows
    none of the attributes of the group, and fails. torch's public function for this
    imports the compiler, which takes seconds. So it is only used if torch does not
    have the private functions that 2.13 has."""
    private = getattr(torch._C._dynamo, "eval_frame", None)
    action, strategy, set_strategy = (getattr(private, name, None) for name in _PRIVATE)
    for cls in classes:
        for name, function in list(vars(cls).items()):
            if not isinstance(function, types.FunctionType):
                continue
            if action and strategy and set_strategy:
                as_it_is = strategy(action.SKIP, action.SKIP)
                set_strategy(function.__code__, as_it_is)
            else:
                setattr(cls, name, torch.compiler.disable(function))


_hide_from_compile(ProcessGroup, SeveralNodes, Work)
_groups = weakref.WeakSet()


def _stop_all():
    for group in list(_groups):
        group._stop()


# A thread that is in torch's C++ code when the interpreter ends aborts the
# process.
atexit.register(_stop_all)
os.register_at_fork(after_in_child=_groups.clear)  # a child has no threads


# --- making one ---------------------------------------------------------------


def _place():
    """Return a text that identifies the machine and the broker of this process."""
    with open("/proc/sys/kernel/random/boot_id") as file:
        return f"{file.read().strip()} {default().status()['memory_id']}"


def _said(store, rank, timeout):
    """Wait for what a rank says of its place. Ctrl-C ends the wait, unlike one in
    store.get()."""
    key, seconds, pause = f"place/{rank}", timeout.total_seconds(), 0.001
    end = time.monotonic() + seconds
    while not store.check([key]):
        if time.monotonic() > end:
            raise BackendError(
                f"cannot make the group: rank {rank} has not come within {seconds:g} s"
            )
        time.sleep(pause)
        pause = min(2 * pause, 0.02)
    return store.get(key).decode()


def _places(store, rank, world_size, timeout):
    """Return the ranks of each node, and a name for the group, which rank 0 has
    made."""
    try:
        place, error = _place(), None
    except Error as caught:
        place, error = f"error {caught}", caught
    store.set(f"place/{rank}", f"{place}\n{uuid.uuid4()}")
    if error:
        raise error
    said = [_said(store, i, timeout).split("\n") for i in range(world_size)]
    nodes = {}
    for i, (theirs, _) in enumerate(said):
        if theirs.startswith("error "):
            raise BackendError(f"rank {i}: {theirs.removeprefix('error ')}")
        nodes.setdefault(theirs, []).append(i)
    return list(nodes.values()), f"c10d.{said[0][1]}"


def _join(store, rank, world_size, name, seconds):
    """Make the group of one node."""
    comm = default()._join(name, world_size, rank, seconds)
    # All ranks have joined, so they have read the key. The next group with this
    # store must not find it. No rank makes that group before all have joined the
    # second communicator, so the key is deleted before that.
    store.delete_key(f"place/{rank}")
    mail = default()._join(f"{name}.p2p", world_size, rank, seconds)
    return ProcessGroup(comm, Mail(mail, seconds), rank, world_size, seconds)


def _join_nodes(store, rank, nodes, name, timeout):
    """Make the group of several nodes."""

    def gloo(key, ranks):
        prefixed = dist.PrefixStore(f"{name}/{key}", store)
        return dist.ProcessGroupGloo(prefixed, ranks.index(rank), len(ranks), timeout)

    world_size, seconds = sum(map(len, nodes)), timeout.total_seconds()
    whole = gloo("all", list(range(world_size)))
    store.delete_key(f"place/{rank}")  # for the same reason as with one node
    k, here = next((k, ranks) for k, ranks in enumerate(nodes) if rank in ranks)
    at, lane = here.index(rank), None
    if at < n_lanes(nodes):
        lane = gloo(at, [ranks[at] for ranks in nodes])
    # Within a node ranks wait longer, so a rank that waits for another node
    # fails first, and the sentence of its error is the right one.
    local = default()._join(f"{name}.{k}", len(here), at, seconds * _PATIENCE)
    # A rank that has its connections may be alone in that: if it closed them now,
    # another rank could not make its own.
    whole.barrier().wait()
    comm = Comm(nodes, rank, local, lane, whole)
    return SeveralNodes(comm, rank, world_size, seconds)


def _why_gloo(nodes):
    """Return the reason why fsdpd does not serve such a group, or None."""
    most = max(map(len, nodes))
    if most > _MAX_RANKS:
        return f"a node has {most} of its ranks, and fsdpd allows {_MAX_RANKS}"
    if len(nodes) > _MAX_RANKS:
        return f"it has {len(nodes)} nodes, and fsdpd allows {_MAX_RANKS}"
    if len(nodes) > 1 and most == 1:
        return f"its {len(nodes)} ranks use as many brokers"
    return None


def _make(store, rank, world_size, timeout):
    nodes, name = _places(store, rank, world_size, timeout)
    if why := _why_gloo(nodes):
        if rank == 0:
            logging.getLogger("fsdp").warning(
                "gloo serves a group for fsdpd, since %s", why
            )
        return dist.ProcessGroupGloo(store, rank, world_size, timeout)
    if len(nodes) == 1:
        return _join(store, rank, world_size, name, timeout.total_seconds())
    return _join_nodes(store, rank, nodes, name, timeout)


def register():
    """Register "fsdpd" with init_process_group(). The import has already done this."""
    if NAME not in dist.Backend.backend_list:
        dist.Backend.register_backend(NAME, _make, devices=["cpu"])


register()
