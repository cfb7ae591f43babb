"""fsdp.torch.DataLoader: torch's loader with channels in place of its queues.

torch's own iterator and its own worker loop run; they get a multiprocessing
context whose queues are those of this file. So samplers, seeds, order, errors
and the end of workers are torch's.

Tasks go to each worker through a pipe of its own. All workers answer through one
channel, whose consumer is the trainer. A batch that is larger than the channel's
buffers travels in shared memory of torch, and makes the trainer open a channel
with larger ones, the next *generation*: each task says through which channel it
is answered, and the trainer reads the old one until its tasks are done.
"""

import collections
import contextlib
import copy
import fcntl
import inspect
import os
import pickle
import queue
import select
import struct
import threading
import time
from multiprocessing.connection import Pipe
from multiprocessing.reduction import ForkingPickler

import torch
import torch.utils.data
from torch._utils import ExceptionWrapper
from torch.utils.data import _utils, dataloader, get_worker_info

from . import _batch, _random_state
from ._client import Client
from ._default import default
from ._errors import Ended, Error, Gone, Invalid, Left, Timeout
from ._fsdp import stack_plain, write_plain
from ._loader_keeper import Keeper
from ._loader_name import new_name
from ._loader_progress import Iterator, SingleIterator, starts

_MAX_WORKERS = 63  # as many producers as a channel can have beside its consumer
_MAX_BUFFERS = 64
_SPARE = 4  # buffers beside those for tasks: batches that the trainer uses
_FIRST_CAPACITY = 256 << 10  # bytes, until a batch is known
_GRAIN = 64 << 10
_GROWTH = 1.25  # later batches may be a little larger
_PATIENCE = 10  # seconds for a channel that the trainer has opened already
# C sees tensors by it without a call of Python; torch has it since 2.10.
_EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_SLICE = 1  # seconds between two looks whether the trainer is still there
_MAX_PLACES = 4096  # tensors that a worker remembers
_COLLATE = _utils.collate.__name__
_PIPE_SIZE = 1 << 20  # so many bytes of tasks can wait in a pipe
_READ_SIZE = 64 << 10  # of them are read at once
_STATE_FORMAT = 1  # of state_dict()


class _Link:
    """What trainer and workers of one iterator know."""

    def __init__(self, given):
        self.name = new_name()
        self.path = os.environ.get("FSDP_SOCKET")
        self.done = None  # torch's event that ends the workers
        self.keeper = None  # in a worker
        # Of the client that the user gave: how a worker connects, too.
        self._given = given and (given._path, given._reconnect)
        self._client = given
        self._sender = None

    def __getstate__(self):
        return {**self.__dict__, "_sender": None, "_client": None}

    def enter(self, start):
        """Be a worker, perhaps one that was forked."""
        self._client, self.keeper = None, Keeper(start)
        self.keeper.watch()

    def connect(self):
        # A fork server has the environment of its start.
        path = None if os.environ.get("FSDP_SOCKET") == self.path else self.path
        if self._given is None:
            return default(path)
        if self._client is None:
            given, reconnect = self._given
            self._client = Client(given or path, reconnect=reconnect)
        return self._client

    def channel(self, generation, role, **options):
        return self.connect().channel(f"{self.name}/{generation}", role, **options)

    def sender(self):
        """In a worker: its end."""
        if self._sender is None:
            self._sender = _Sender(self, get_worker_info().id)
        return self._sender


# --- in a worker --------------------------------------------------------------


class _Large:
    """In place of a batch: the shared memory of torch with its message."""

    def __init__(self, batch):
        message = _batch.Message(batch)
        self.storage = torch.UntypedStorage._new_shared(message.size)
        address = self.storage.data_ptr()
        with self._view() as view:
            message.write(view, address)

    def _view(self):
        return memoryview(torch.empty(0, dtype=torch.uint8).set_(self.storage).numpy())

    def read(self):
        return _batch.read(self._view())


class _Place:
    """A tensor in a buffer, and what messages say of it."""

    def __init__(self, storage, at, shape, dtype, size):
        self.tensor = torch.empty(0, dtype=dtype)
        self.tensor.set_(storage, at // self.tensor.element_size(), shape)
        address = self.tensor.data_ptr()
        self.piece = address, _batch.Piece(storage, address, 0, size, at)
        self.record = id(self.tensor), _batch.record_of(at, shape, dtype)
        self.end = _batch.aligned(at + size)


def _size_of(shape, dtype):
    size = torch.empty(0, dtype=dtype).element_size()
    for n in shape:
        size *= n
    return size


class _Stacked:
    """A batch whose elements are in the buffer already."""


class _Sender:
    """Where a worker collates into and sends from: one buffer after another."""

    def __init__(self, link, worker):
        self._link, self._worker = link, worker
        self._parent = os.getppid()
        self._generation = self._channel = self._item = None
        self._forget()

    def _forget(self):
        self._placed, self._records, self._at = [], {}, _batch.FIRST

    def use(self, generation):
        """Answer the next tasks through this channel."""
        if generation == self._generation:
            return
        self.close()
        self._channel = self._link.channel(generation, "producer", timeout=_PATIENCE)
        self._generation = generation
        self._capacity = self._channel.info()["capacity"]
        self._storages, self._places = {}, {}

    def close(self):
        if self._channel is not None:
            self._item = None
            self._channel.close()
            self._channel = self._generation = None

    def _begin(self):
        """Have a buffer, or False: the trainer wants nothing more."""
        while self._item is None:
            try:
                self._item = self._channel._port.begin(self._capacity, _SLICE)
            except Left:
                return False
            except Timeout:
                if self._link.done.is_set() or os.getppid() != self._parent:
                    return False
        return True

    def _storage(self, address):
        """A buffer as torch sees it. It does not keep the item, which is sent
        while the worker still has the batch."""
        if address not in self._storages:
            import ctypes

            memory = (ctypes.c_uint8 * self._capacity).from_address(address)
            data = torch.frombuffer(memory, dtype=torch.uint8)
            self._storages[address] = _batch.storage_of(data)
        return self._storages[address]

    def place(self, shape, dtype):
        """A tensor in the buffer, whose batch is sent next; None: no room. The
        same one serves each batch that has such a tensor in this place."""
        if self._item is None and not self._begin():
            return None
        key = self._item.address, self._at, shape, dtype
        place = self._places.get(key)
        if place is None:
            size = _size_of(shape, dtype)
            if not size or self._at + size > self._capacity:
                return None
            if len(self._places) == _MAX_PLACES:
                self._places.clear()
            place = _Place(self._storage(key[0]), self._at, shape, dtype, size)
            self._places[key] = place
        self._placed.append(place)
        self._at = place.end
        return place.tensor

    def collate(self, samples, collate_fn_map):
        self._forget()
        return _utils.collate.collate(samples, collate_fn_map=collate_fn_map)

    def stack(self, samples):
        """What stands for the batch of samples that C knows to collate; None:
        torch has to do it."""
        self._forget()
        if _EXCHANGE is None or not self._begin():
            return None
        stacked = stack_plain(
            self._item, self._at, samples, torch.Tensor, _EXCHANGE
        )
        if stacked is None:
            return None
        batch = _Stacked()
        self._at, record = stacked
        self._records[id(batch)] = record
        return batch

    def _send_plain(self, answer):
        """Send what needs no pickle, or return False."""
        records = self._records
        records.update(place.record for place in self._placed)
        if not records:
            return False
        if not write_plain(self._item, self._at, answer, records):
            return False
        item, self._item = self._item, None
        self._forget()
        item.send()
        return True

    def _message(self, number, data, *kept):
        answer = self._worker, number, data, *kept
        placed = dict(place.piece for place in self._placed)
        message = _batch.Message(answer, placed, self._at)
        if message.size > self._capacity:
            answer = self._worker, number, _Large(data), *map(_Large, kept)
            message = _batch.Message(answer)
        return message

    def send(self, number, data, *kept):
        """`kept` is for Progress.receive(), if there is any."""
        if self._send_plain((self._worker, number, data, *kept)):
            return
        try:
            message = self._message(number, data, *kept)
        except Exception:
            where = f"in DataLoader worker process {self._worker}"
            self._forget()
            message = self._message(number, ExceptionWrapper(where=where))
        self._forget()
        if not self._begin():
            return
        item, self._item = self._item, None
        with memoryview(item) as view:
            message.write(view, item.address)
        item.send()


class _Collate:
    """torch's default_collate(), which stacks tensors in the channel's buffer."""

    def __init__(self, link):
        self._link = link

    def __call__(self, samples):
        known = _utils.collate.default_collate_fn_map
        # Functions of others could keep or change a tensor that is used again.
        if any(each.__module__ != _COLLATE for each in known.values()):
            return _utils.collate.default_collate(samples)
        self._sender = self._link.sender()
        if type(samples) is list and (batch := self._sender.stack(samples)):
            return batch
        known = {**known, torch.Tensor: self._stack}
        for kind in int, float:
            known[kind] = self._number
        return self._sender.collate(samples, known)

    def pass_over(self, samples):
        """For a batch that was handed out before."""

    def _stack(self, samples, *, collate_fn_map=None):
        first = samples[0]
        if not _batch.is_plain(first) or first.is_conj():
            return _utils.collate.collate_tensor_fn(samples)
        shape = len(samples), *first.shape
        return torch.stack(samples, out=self._sender.place(shape, first.dtype))

    def _number(self, samples, *, collate_fn_map=None):
        known = _utils.collate.default_collate_fn_map
        kind = float if isinstance(samples[0], float) else int
        numbers = known[kind](samples)
        place = self._sender.place(tuple(numbers.shape), numbers.dtype)
        return numbers if place is None else place.copy_(numbers)


# --- in the trainer -----------------------------------------------------------


class _Generation:
    """A channel, and how many tasks are answered through it."""

    def __init__(self, link, number, capacity, n_buffers):
        self.number, self.n_tasks = number, 0
        self.channel = link.channel(
            number, "consumer", capacity=capacity, credits=n_buffers, timeout=0
        )
        self.port = self.channel._port


class _Receiver:
    """The trainer's end. One thread gives out tasks, and the same or the one that
    pins memory receives the answers."""

    def __init__(self, link, n_tasks, learned):
        self._link = link
        self._learned = learned
        self.progress = None  # of the epoch: the iterator's
        self._n_buffers = min(_MAX_BUFFERS, n_tasks + _SPARE)
        self._lock = threading.Lock()
        self._generations = collections.deque()  # new tasks are of the last
        self._tasks = collections.defaultdict(collections.deque)  # by worker

    # --- tasks ----------------------------------------------------------------

    def begin_task(self, worker, task):
        """The generation through which the worker is to answer."""
        with self._lock:
            if not self._generations:
                self._open(self._learned.get("capacity", _FIRST_CAPACITY))
            last = self._generations[-1]
            last.n_tasks += 1
            is_resume = isinstance(task, _utils.worker._ResumeIteration)
            self._tasks[worker].append((last, is_resume))
            return last.number

    def _end_task(self, worker, data):
        is_end = isinstance(data, _utils.worker._IterableDatasetStopIteration)
        tasks = self._tasks[worker]
        with self._lock:
            tasks.popleft()[0].n_tasks -= 1
            # A worker at its end passes over what it was given meanwhile.
            while is_end and tasks and not tasks[0][1]:
                tasks.popleft()[0].n_tasks -= 1

    def _n_tasks(self):
        return sum(one.n_tasks for one in self._generations)

    # --- channels -------------------------------------------------------------

    def _open(self, capacity):
        number = self._generations[-1].number + 1 if self._generations else 0
        new = _Generation(self._link, number, capacity, self._n_buffers)
        self._generations.append(new)
        self._learned["capacity"] = capacity

    def _grow(self, size):
        """Have buffers for a batch of this size, if the broker has the memory."""
        if size > self._learned["capacity"]:
            capacity = int(size * _GROWTH) // _GRAIN * _GRAIN + _GRAIN
            with self._lock, contextlib.suppress(Error):
                self._open(capacity)

    def _current(self):
        """The oldest channel that has tasks to be answered, or else the last."""
        if len(self._generations) == 1:
            return self._generations[0]
        with self._lock:
            while len(self._generations) > 1 and not self._generations[0].n_tasks:
                self._generations.popleft().channel.close()
            return self._generations[0]

    def close(self):
        while self._generations:
            self._generations.popleft().channel.close()

    # --- answers --------------------------------------------------------------

    def _memory(self, generation, item):
        """Of an item. If the trainer holds so many that workers would have too
        few, it becomes an ordinary tensor, or is copied where the broker has no
        new buffer yet."""
        if 2 * generation.port.held <= self._n_buffers:
            return memoryview(item)
        with self._lock:
            # Some also for workers that have no task now: the next epoch's.
            wanted = max(self._n_tasks() - 1, _SPARE)
        wanted = min(wanted, self._n_buffers // 2)
        if generation.port.held + wanted <= self._n_buffers:
            return memoryview(item)
        if generation.channel.info()["credits"] == self._n_buffers:
            with contextlib.suppress(Error):
                item.keep()
                return memoryview(item)
        with memoryview(item) as view:
            part = view[: _batch.size_of(view)]
            copy = torch.frombuffer(part, dtype=torch.uint8).clone()
        return memoryview(copy.numpy())

    def _accept(self, generation, item):
        worker, number, data, *kept = _batch.read(self._memory(generation, item))
        if worker is not None:
            self._end_task(worker, data)
        for one in kept:
            one = one.read() if isinstance(one, _Large) else one
            self.progress.receive(worker, number, one)
        if isinstance(data, _Large):
            self._grow(data.storage.nbytes())
            data = data.read()
        return number, data

    def receive(self, timeout):
        """The next answer; raises queue.Empty, as a queue does."""
        end = time.monotonic() + timeout
        while True:
            generation = self._current()
            left = max(0, end - time.monotonic())
            try:
                item = generation.port.receive(left)
            except Gone:
                continue  # A worker died: torch knows how its children end
            except (Timeout, Ended) as error:
                if left and isinstance(error, Ended):
                    time.sleep(min(left, 0.05))
                    continue
                raise queue.Empty from None
            return self._accept(generation, item)

    def wake(self):
        """End the wait of the thread that receives."""
        sender = _Sender(self._link, None)
        sender.use(self._generations[-1].number)
        sender.send(None, None)
        sender.close()


# --- what torch takes for queues ----------------------------------------------


_WORD = struct.Struct("<Q")


def _pickled(thing):
    try:
        return pickle.dumps(thing, pickle.HIGHEST_PROTOCOL)
    except Exception:
        return bytes(ForkingPickler.dumps(thing))  # pickles more, and is slower


class _Queue:
    """What both have: nothing is written by a thread that could be joined."""

    def cancel_join_thread(self):
        pass


class _Tasks(_Queue):
    """From the trainer to one worker: pickles through a pipe, each after a word
    with its size."""

    def __init__(self, link, receiver, worker):
        self._link, self._receiver, self._worker = link, receiver, worker
        self._reader, self._writer = Pipe(duplex=False)
        self._unread, self._waiter = bytearray(), None
        with contextlib.suppress(OSError):  # there is a limit for each user
            fcntl.fcntl(self._writer.fileno(), fcntl.F_SETPIPE_SZ, _PIPE_SIZE)

    def __getstate__(self):
        return {**self.__dict__, "_receiver": None, "_writer": None}

    def put(self, task):
        generation = None
        if task is not None:
            generation = self._receiver.begin_task(self._worker, task)
        data = _pickled((generation, task))
        data = memoryview(_WORD.pack(len(data)) + data)
        try:
            while data:
                data = data[os.write(self._writer.fileno(), data) :]
        except OSError:
            # Of an iterator in a cycle Python may have closed the pipe before: the
            # worker reads its end, and ends.
            if task is not None:
                raise

    def _next(self):
        """The oldest task that has been read, or None."""
        unread = self._unread
        if len(unread) < _WORD.size:
            return None
        end = _WORD.size + _WORD.unpack_from(unread)[0]
        if len(unread) < end:
            return None
        answer = ForkingPickler.loads(unread[_WORD.size : end])
        del unread[:end]
        return answer

    def _read(self, timeout):
        if self._waiter is None:
            if self._writer is not None:
                self._writer.close()  # the trainer's: its death is the end
            self._waiter = select.poll()
            self._waiter.register(self._reader.fileno(), select.POLLIN)
        if not self._waiter.poll(timeout * 1000):
            raise queue.Empty
        data = os.read(self._reader.fileno(), _READ_SIZE)
        self._unread += data
        return bool(data)

    def get(self, timeout):
        while (answer := self._next()) is None:
            if not self._read(timeout):
                # torch's watchdog misses a trainer that died before it began.
                self._link.done.set()
                return None
        generation, task = answer
        if generation is not None:
            self._link.sender().use(generation)
        return task

    def close(self):
        """The workers have ended: torch closes no queue of answers."""
        self._reader.close()
        self._writer.close()
        self._receiver.close()


class _Answers(_Queue):
    """From all workers to the trainer."""

    def __init__(self, link, receiver):
        self._link, self._receiver = link, receiver
        self._trainer = os.getpid()

    def __getstate__(self):
        return {**self.__dict__, "_receiver": None}

    def put(self, answer):
        if os.getpid() == self._trainer:
            self._receiver.wake()  # torch puts nothing that anybody reads
        else:
            is_between = isinstance(answer[0], _utils.worker._ResumeIteration)
            kept = self._link.keeper.keep(is_between)
            more = () if kept is None else (kept,)
            self._link.sender().send(*answer, *more)

    def get(self, timeout):
        return self._receiver.receive(timeout)

    def close(self):
        if os.getpid() == self._trainer:
            self._receiver.close()
        else:
            # Without a broker nobody waits for what this worker does not send.
            with contextlib.suppress(Error):
                self._link.sender().close()


def _work(link, start, loop, args):
    """A worker."""
    link.enter(start)
    loop(*args)


class _Context:
    """What torch's iterator uses of a multiprocessing context. Its first queue is
    for the answers, and each other one for a worker."""

    def __init__(self, context, link, receiver, starts):
        self._context, self._link, self._receiver = context, link, receiver
        self._n_queues, self._starts = 0, iter(starts)

    def Process(self, target, args):
        args = self._link, next(self._starts), target, args
        return self._context.Process(target=_work, args=args)

    def Event(self):
        self._link.done = self._context.Event()
        return self._link.done

    def Queue(self):
        self._n_queues += 1
        if self._n_queues == 1:
            return _Answers(self._link, self._receiver)
        return _Tasks(self._link, self._receiver, self._n_queues - 2)


class _Changed:
    """A loader of which some attributes are others."""

    def __init__(self, loader, **changes):
        self.__dict__.update(changes)
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)


# --- the class that users see -------------------------------------------------


def _check_torch():
    """Is torch's loader the one that this file was written for?"""
    wanted = ["dataset_kind", "dataset", "index_queue", "data_queue", "done_event"]
    try:
        found = list(inspect.signature(_utils.worker._worker_loop).parameters)[:5]
        dataloader._MultiProcessingDataLoaderIter, _utils.worker._ResumeIteration
    except AttributeError as error:
        found = error
    if found != wanted:
        raise NotImplementedError(
            f"fsdp.torch.DataLoader does not know the loader of torch "
            f"{torch.__version__} ({found}); use torch's own with fsdp.torch.pack()"
        )


class DataLoader(torch.utils.data.DataLoader):
    """torch.utils.data.DataLoader, whose workers hand batches over in the
    broker's memory.

    Arguments, batches, order, random numbers and errors are torch's. A batch
    shows one buffer of a channel, and may be changed in place; the buffer is
    the workers' again when the last of its tensors is gone. A batch may be kept:
    when the trainer holds too many, later ones become ordinary tensors of the
    broker, or copies if it has no memory for them. Without workers, and with
    more than 63, it does as torch does.

    `client` is the connection to use, such as fsdp.connect(reconnect=2); each
    worker connects to the same broker, and waits as long for it. None: that of
    fsdp.default().
    """

    def __init__(self, dataset, *args, client=None, **options):
        super().__init__(dataset, *args, **options)
        self.client = client

    def _get_iterator(self):
        """torch's hook: an iterator for a new epoch, or the one to go on with."""
        learned = self.__dict__.setdefault("_fsdp_learned", {})
        state = learned.pop("loaded", None)
        epoch = None if state is None else state["epoch"]
        random = _random_state.of_process()
        iterator = self._iterator_at(epoch, learned)
        if epoch is not None and not epoch["is_finished"]:
            _random_state.put_process(random)
        return iterator

    def _iterator_at(self, epoch, learned):
        if self.num_workers > _MAX_WORKERS:
            return super()._get_iterator()
        if self.num_workers == 0:
            iterator = SingleIterator(self, epoch, "progress" not in learned)
            learned["progress"] = iterator
            return iterator
        _check_torch()
        self.check_worker_number_rationality()
        link = _Link(self.client)
        if link.connect().closed:  # before workers are started
            raise Invalid("the loader's client is closed; make a loader with another")
        receiver = _Receiver(link, self.num_workers * self.prefetch_factor, learned)
        context = self.multiprocessing_context or torch.multiprocessing
        context = _Context(context, link, receiver, starts(self, epoch))
        changes = {"multiprocessing_context": context}
        if self.collate_fn is _utils.collate.default_collate:
            changes["collate_fn"] = _Collate(link)
        return Iterator(_Changed(self, **changes), receiver, learned, epoch)

    def __getstate__(self):
        return {**self.__dict__, "_fsdp_learned": {}}

    # --- going on later -------------------------------------------------------

    def _arguments(self):
        """Those that a state can only be loaded with."""
        names = "num_workers", "batch_size", "drop_last", "persistent_workers"
        kinds = "sampler", "batch_sampler"
        return {
            **{name: getattr(self, name) for name in names},
            **{name: type(getattr(self, name)).__name__ for name in kinds},
            "dataset": ("map-style", "iterable")[self._dataset_kind],
        }

    def state_dict(self):
        """How far the loader is: after the last batch that the iterator which
        began last has handed out, whatever workers fetched in advance.

        It is plain data, for torch.save() and pickle. It has the random numbers
        of this process, the generators and the workers, and the states of data
        set and sampler, if these have `state_dict()` and `load_state_dict()`.
        """
        if self.num_workers > _MAX_WORKERS:
            raise NotImplementedError(
                f"cannot take the state of a loader with {self.num_workers} workers; "
                f"use {_MAX_WORKERS} at most"
            )
        learned = self.__dict__.setdefault("_fsdp_learned", {})
        if "loaded" in learned:
            return copy.deepcopy(learned["loaded"])
        progress = learned.get("progress")
        return {
            "format": _STATE_FORMAT,
            "arguments": self._arguments(),
            "random": _random_state.of_loader(self),
            "epoch": None if progress is None else progress.epoch(),
        }

    def load_state_dict(self, state_dict):
        """Go on, at the next iter(), where a loader of the same arguments was:
        with the rest of its epoch, or with the next one if that was over.

        It also has the random numbers of torch (on the CPU), numpy and Python
        go on in this process, and those of the generators that the loader was
        given.
        """
        self._check_state(state_dict)
        self._iterator = None
        _random_state.put_loader(self, state_dict["random"])
        self.__dict__["_fsdp_learned"] = {"loaded": copy.deepcopy(state_dict)}

    def _check_state(self, state):
        if not isinstance(state, dict) or state.get("format") != _STATE_FORMAT:
            raise Invalid(
                "cannot load the state: it is not of fsdp.torch.DataLoader, or of "
                "another version of it; begin a new epoch without it"
            )
        mine, its = self._arguments(), state["arguments"]
        other = [name for name in mine if mine[name] != its[name]]
        if other:
            said = ", ".join(f"{n}={its[n]!r} (here {mine[n]!r})" for n in other)
            raise Invalid(
                f"cannot load the state: it is of a loader with {said}; "
                "make the loader with the same arguments"
            )
