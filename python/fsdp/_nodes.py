"""A communicator whose ranks are on several nodes. The ranks of a node share
memory, and gloo sends bytes between nodes.

There are as many lanes as the smallest node has ranks. The first lane is a
group of gloo with the first rank of each node, the second lane has the second
ranks, and so on. A large tensor is cut into a piece for each lane, so that all
lanes send a part of it. fsdpd computes all sums.
"""

import contextlib
import ctypes
import datetime
import functools
import re
import threading

import torch
import torch.distributed as dist

from . import _fsdp
from ._dtypes import DTYPES, LONG_NAMES
from ._errors import Error, Invalid
from ._work import BackendError

_WIDTHS = dict(enumerate(DTYPES.values(), 1))
_LONG_NAMES = {number: LONG_NAMES[name] for number, name in enumerate(DTYPES, 1)}
_WHOLE = {number for number, name in enumerate(DTYPES, 1) if name[0] in "iu"}
_I64 = list(DTYPES).index("i64") + 1
_SUM, _MEAN = 0, 1
_NOTHING = 0, 0  # a part without elements
_SMALL = 64 << 10  # bytes up to which several lanes are no faster than one
_CHUNK = 1 << 21  # bytes of a piece that are exchanged at a time
# how long a wait takes to notice Ctrl-C
_SLICE = datetime.timedelta(milliseconds=200)
_SOON = datetime.timedelta(milliseconds=1)
_UNUSED_TAG = 2**31 - 1

# gloo misses now and then that a connection was closed. What it then still uses
# is kept by this list, which is never destroyed, since destructors would wait.
_given_up = []
ctypes.pythonapi.Py_IncRef(ctypes.py_object(_given_up))


def _bytes(address, n):
    """Return memory of a caller as a tensor."""
    if n == 0:
        return torch.empty(0, dtype=torch.uint8)
    return torch.frombuffer((ctypes.c_uint8 * n).from_address(address), dtype=torch.uint8)


def _elements(dtype, address, n):
    kind = getattr(torch, _LONG_NAMES[dtype])
    return _bytes(address, n * _WIDTHS[dtype]).view(kind)


def _widened(dtype, address, n):
    return _elements(dtype, address, n).to(torch.int64, copy=True)


def _divide(sums, n, dtype, address):
    """Write sums of 64 bits, divided towards zero. torch does not divide
    uint64, so it divides half of each sum; the remainder then corrects the
    quotient."""
    target = _elements(dtype, address, len(sums))
    if target.dtype != torch.uint64:
        target.copy_(sums.div_(n, rounding_mode="trunc"))
        return
    halves = (sums >> 1) & torch.iinfo(torch.int64).max
    quotients = halves.div_(n, rounding_mode="trunc") << 1
    target.copy_(quotients + (sums - quotients * n >= n))


def _empty(*shape):
    return torch.empty(shape, dtype=torch.uint8)


def _cut(n, n_pieces):
    """Return (offset, size) of pieces whose sizes differ by at most 1."""
    ends = [n * i // n_pieces for i in range(n_pieces + 1)]
    return [(start, end - start) for start, end in zip(ends, ends[1:])]


def _collective(method):
    """Decorate a call of a communicator. After an error all later calls fail."""

    @functools.wraps(method)
    def call(self, *args):
        if self._error:
            raise BackendError(f"the group has failed before: {self._error}")
        try:
            return method(self, *args)
        except Invalid:
            raise  # the call was refused, so the group can still be used
        except BaseException as error:
            raise self._fail(error) from None

    return call


class _GlooError(Exception):
    """gloo's error for a call that has begun."""


def _stop(group):
    """End all calls of a group of gloo, which has no call for that: a message that
    is late makes it close its connections. So the other ranks are told, too. The
    message may come from any rank, since nothing is written then: gloo can block
    for ever if it writes to a connection that the other rank closes meanwhile."""
    with contextlib.suppress(RuntimeError):
        group.recv_anysource([_empty(1)], _UNUSED_TAG).wait(_SOON)


class Comm:
    """A communicator with the same calls as that of one node. `nodes` are lists
    of ranks, and `local` is the communicator of this node. `lane` and `whole`
    are gloo's groups of this rank's lane (or None), and of all ranks."""

    def __init__(self, nodes, rank, local, lane, whole):
        self._nodes, self._local, self._lane, self.whole = nodes, local, lane, whole
        self._node = next(k for k, ranks in enumerate(nodes) if rank in ranks)
        self._here = nodes[self._node]
        self._at = self._here.index(rank)
        self._rank, self._n_ranks = rank, sum(map(len, nodes))
        self._n_lanes = n_lanes(nodes)
        # The most ranks of a node that one lane serves.
        self._n_rows = -(-max(map(len, nodes)) // self._n_lanes)
        self._error, self._is_aborted, self._stopping = None, False, None

    # --- between the nodes ----------------------------------------------------

    def _await(self, work):
        try:
            while not work.is_completed():
                with contextlib.suppress(RuntimeError):
                    work.wait(_SLICE)
                if self._is_aborted:
                    raise BackendError("the communicator was aborted by this process")
        except BaseException as error:
            self._give_up(work, error)
            raise
        try:
            work.wait()
        except RuntimeError as error:
            raise _GlooError(str(error)) from None

    def _give_up(self, work, error):
        """Stop gloo. It uses the memory of the call until it has ended it."""
        try:
            self.stop()
            with contextlib.suppress(RuntimeError):
                work.wait(_SLICE)
        finally:  # This also runs if Ctrl-C came again.
            if not work.is_completed():
                _given_up.append((error, self._lane, self.whole))

    def stop(self):
        """End what gloo does for this rank, for good. If gloo itself blocks, this
        waits for a second only."""
        if not self.is_stopped:
            groups = [group for group in (self._lane, self.whole) if group]
            stopping = threading.Thread(target=lambda: [*map(_stop, groups)], daemon=True)
            stopping.start()
            self._stopping = stopping
        self._stopping.join(1)

    @property
    def is_stopped(self):
        return self._stopping is not None

    def _all_gather(self, mine):
        """Return the rows of all ranks of the lane, in the order of the nodes.
        gloo's all-gather takes several times as long."""
        n = len(self._nodes) - 1
        sizes = [mine.numel()] * (n + 1)
        sizes[self._node] = 0
        got, flat = _empty(n, *mine.shape), mine.view(-1)
        given = flat.repeat(n) if n > 1 else flat
        self._await(self._lane.alltoall_base(got.view(-1), given, sizes, sizes))
        rows = list(got)
        rows.insert(self._node, mine)
        return rows

    def _exchange(self, mine, sizes):
        """Give each rank of the lane that many bytes, and return a row from each."""
        n = sizes[self._node]
        rows = _empty(len(sizes), n)
        self._await(self._lane.alltoall_base(rows.view(-1), mine, [n] * len(sizes), sizes))
        return rows

    def _fold(self, dtype, how, rows, address, count):
        """Reduce the rows from all nodes, in their order."""
        _fsdp.fold(dtype, _sum_of(how), [row.data_ptr() for row in rows], address, count)
        if how == _MEAN:
            _elements(dtype, address, count).div_(self._n_ranks)

    def _reduce(self, dtype, how, address, count):
        """Reduce a piece over all ranks of the lane, in place."""
        width = _WIDTHS[dtype]
        step = _CHUNK // width
        for at in range(0, count, step):
            n = min(step, count - at)
            self._reduce_chunk(dtype, how, address + at * width, n)

    def _reduce_chunk(self, dtype, how, address, count):
        width, n = _WIDTHS[dtype], len(self._nodes)
        mine = _bytes(address, count * width)
        if n == 2 or len(mine) <= _SMALL:
            total = torch.empty_like(mine)
            self._fold(dtype, how, self._all_gather(mine), total.data_ptr(), count)
            mine.copy_(total)
            return
        # Each rank folds a part, which is then gathered.
        sizes = [size * width for _, size in _cut(count, n)]
        rows, part = self._exchange(mine, sizes), _empty(max(sizes))
        self._fold(dtype, how, rows, part.data_ptr(), sizes[self._node] // width)
        parts = self._all_gather(part)
        torch.cat([row[:size] for row, size in zip(parts, sizes)], out=mine)

    # --- collectives ----------------------------------------------------------

    def _pieces(self, address, count, width):
        """Return (address, count) of the piece of each rank of this node."""
        n = self._n_lanes if count * width > _SMALL else 1
        cut = [(address + at * width, size) for at, size in _cut(count, n)]
        return cut + [_NOTHING] * (len(self._here) - n)

    @_collective
    def barrier(self, _):
        self._local.barrier(None)
        if self._at == 0:
            self._await(self._lane.barrier())
        self._local.barrier(None)

    @_collective
    def broadcast(self, dtype, address, count, root):
        pieces = self._pieces(address, count, _WIDTHS[dtype])
        source = next(k for k, ranks in enumerate(self._nodes) if root in ranks)
        mine, n = pieces[self._at]
        if self._node == source:
            self._local.broadcast(dtype, address, count, self._here.index(root))
        if n:
            opts = dist.BroadcastOptions()
            opts.rootRank = source
            self._await(self._lane.broadcast([_bytes(mine, n * _WIDTHS[dtype])], opts))
        if self._node != source:
            self._local.all_gather(dtype, mine, n, pieces)

    @_collective
    def all_reduce(self, dtype, how, source, target, count):
        if how != _MEAN or dtype not in _WHOLE:
            self._all_reduce(dtype, how, source, target, count)
            return
        sums = _widened(dtype, source, count)
        self._all_reduce(_I64, _SUM, sums.data_ptr(), sums.data_ptr(), count)
        _divide(sums, self._n_ranks, dtype, target)

    def _all_reduce(self, dtype, how, source, target, count):
        width = _WIDTHS[dtype]
        inputs, pieces = (self._pieces(at, count, width) for at in (source, target))
        mine, n = pieces[self._at]
        _check_mean(dtype, how)
        self._local.reduce_scatter(dtype, _sum_of(how), inputs, mine, n)
        if n:
            self._reduce(dtype, how, mine, n)
        self._local.all_gather(dtype, mine, n, pieces)

    def reduce(self, dtype, how, source, target, count, root):
        # The other ranks get the result, too: it has been sent between the
        # nodes already, so this costs little.
        self.all_reduce(dtype, how, source, target, count)

    def _rows(self, ranks, parts):
        """Yield for each row the parts of the ranks of a node that the lanes
        serve. Ranks of this node without a lane get no part."""
        n = self._n_lanes
        for i in range(self._n_rows):
            row = [parts[rank] for rank in ranks[i * n : (i + 1) * n]]
            yield i, row + [_NOTHING] * (len(self._here) - len(row))

    @_collective
    def all_gather(self, dtype, source, count, outputs):
        size = _largest(outputs) * _WIDTHS[dtype]
        _check_own(count, outputs[self._rank])
        self._local.all_gather(dtype, source, count, [outputs[r] for r in self._here])
        rows = self._gathered(dtype, size, outputs) if self._at < self._n_lanes else None
        for k, ranks in enumerate(self._nodes):
            if k == self._node:
                continue
            for i, parts in self._rows(ranks, outputs):
                n = parts[self._at][1]
                self._local.all_gather(dtype, n and rows[k][i].data_ptr(), n, parts)

    def _gathered(self, dtype, size, outputs):
        """Return the inputs of the ranks of all nodes that this lane serves.
        Each is padded to this size."""
        mine = _empty(self._n_rows, size)
        for i, rank in enumerate(self._here[self._at :: self._n_lanes]):
            address, count = outputs[rank]
            part = _bytes(address, count * _WIDTHS[dtype])
            mine[i, : len(part)] = part
        return self._all_gather(mine)

    @_collective
    def reduce_scatter(self, dtype, how, inputs, target, count):
        _check_own(count, inputs[self._rank])
        if how != _MEAN or dtype not in _WHOLE:
            self._reduce_scatter(dtype, how, inputs, target, count)
            return
        wide = [_widened(dtype, *part) for part in inputs]
        parts = [(part.data_ptr(), len(part)) for part in wide]
        sums = torch.empty(count, dtype=torch.int64)
        self._reduce_scatter(_I64, _SUM, parts, sums.data_ptr(), count)
        _divide(sums, self._n_ranks, dtype, target)

    def _reduce_scatter(self, dtype, how, inputs, target, count):
        size, n = _largest(inputs) * _WIDTHS[dtype], len(self._nodes)
        sums = _empty(n, self._n_rows, size)
        _check_mean(dtype, how)
        for k, ranks in enumerate(self._nodes):
            for i, parts in self._rows(ranks, inputs):
                to, n_mine = sums[k, i].data_ptr(), parts[self._at][1]
                self._local.reduce_scatter(dtype, _sum_of(how), parts, to, n_mine)
        rows = None
        if self._at < self._n_lanes:
            rows = self._exchange(sums.view(-1), [self._n_rows * size] * n)
            rows = rows.view(n, self._n_rows, size).transpose(0, 1)
        if self._n_rows == 1:
            self._fold(dtype, how, rows[0], target, count)
        else:
            counts = [inputs[rank][1] for rank in self._here]
            self._pass_on(dtype, how, rows, target, counts)

    def _pass_on(self, dtype, how, rows, target, counts):
        """Fold the rows of the ranks that this lane serves, and send them the
        results."""
        given = [_NOTHING] * len(self._here)
        taken = list(given)
        taken[self._at % self._n_lanes] = target, counts[self._at]
        kept = []
        if rows is not None:
            for row, i in zip(rows, range(self._at, len(given), self._n_lanes)):
                kept.append(_empty(row.size(1)))
                given[i] = kept[-1].data_ptr(), counts[i]
                self._fold(dtype, how, row, *given[i])
        self._local.all_to_all(dtype, given, taken)

    # --- calls that only gloo handles -----------------------------------------

    @_collective
    def gather(self, dtype, source, count, outputs, root):
        opts, width = dist.GatherOptions(), _WIDTHS[dtype]
        opts.rootRank = root
        parts = [[_bytes(at, n * width) for at, n in outputs]] if outputs else []
        self._await(self.whole.gather(parts, [_bytes(source, count * width)], opts))

    @_collective
    def scatter(self, dtype, inputs, target, count, root):
        opts, width = dist.ScatterOptions(), _WIDTHS[dtype]
        opts.rootRank = root
        parts = [[_bytes(at, n * width) for at, n in inputs]] if inputs else []
        self._await(self.whole.scatter([_bytes(target, count * width)], parts, opts))

    @_collective
    def all_to_all(self, dtype, inputs, outputs):
        width = _WIDTHS[dtype]
        given, taken = ([_bytes(at, n * width) for at, n in p] for p in (inputs, outputs))
        sizes, taken_sizes = ([len(part) for part in p] for p in (given, taken))
        got = _empty(sum(taken_sizes))
        self._await(
            self.whole.alltoall_base(got, torch.cat(given), taken_sizes, sizes)
        )
        for part, came in zip(taken, got.split(taken_sizes)):
            part.copy_(came)

    # --- the end --------------------------------------------------------------

    def _fail(self, error):
        """Return the error for the caller. This rank leaves its node's
        communicator, and closes gloo's connections, so all others notice."""
        with contextlib.suppress(Error):
            self._local.leave()
        self.stop()
        self._lane = None
        self._error = self._sentence(error)
        return BackendError(self._error) if isinstance(error, Exception) else error

    def _sentence(self, error):
        text = str(error)
        if not isinstance(error, Exception):
            return "a call was interrupted"
        if isinstance(error, Error):
            return re.sub(r"\brank (\d+)", self._renamed, text)
        if not isinstance(error, _GlooError):
            return f"a call failed in this process: {error!r}"
        others = [ranks[0] for ranks in self._nodes if ranks is not self._here]
        said = re.sub(r"^\[[^]]*\] ", "", text).partition(". ")[0]
        return (
            f"cannot exchange with the nodes of the ranks {others}: one is late, has "
            f"ended or cannot be reached; gloo says: {said}"
        )

    def _renamed(self, match):
        """Replace a rank of this node by its number in the group."""
        at = int(match[1])
        return f"rank {self._here[at]}" if at < len(self._here) else match[0]

    def leave(self):
        self._local.leave()
        self._lane = self.whole = None

    def abort(self):
        self._is_aborted = True
        self._local.abort()
        self.stop()


def n_lanes(nodes):
    return min(map(len, nodes))


def _sum_of(how):
    """Return the reduction of partial results. A mean is divided once, at the end."""
    return _SUM if how == _MEAN else how


def _check_mean(dtype, how):
    """Refuse a mean that the dtype does not have."""
    if how == _MEAN:
        unused = _empty(16).data_ptr()
        _fsdp.fold(dtype, how, [unused], unused, 0)


def _largest(parts):
    return max(count for _, count in parts)


def _check_own(count, part):
    if part[1] != count:
        raise Invalid(
            f"this rank's tensor has {count} elements, and its part of the list has "
            f"{part[1]}; give both the same number"
        )
