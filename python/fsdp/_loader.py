"""fsdp.torch.DataLoader is torch's loader with channels in place of its queues.

torch's own iterator and worker loop run, with a multiprocessing context whose
queues are those of this file. So torch still decides on samplers, seeds, order,
errors and the end of workers.

Each worker gets its tasks through a pipe of its own. All workers answer through
one channel, whose consumer is the trainer. A batch that is larger than the
channel's buffers is sent in torch's shared memory. The trainer then opens a
channel with larger buffers, the next *generation*. Each task says through which
channel it is to be answered, and the trainer reads the old channel until its
tasks are done.
"""

import collections
import contextlib
import copy
import inspect
import os
import queue
import select
import threading
import time
import typing

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
from ._loader_tasks import Queue, Tasks

# the most producers that a channel can have beside a consumer
_MAX_WORKERS = 63
_MAX_BUFFERS = 64
# buffers for batches that the trainer uses, besides one for each task
_SPARE = 4
_FIRST_CAPACITY = 256 << 10  # bytes of a buffer until the first batch is known
_GRAIN = 64 << 10
_GROWTH = 1.25  # allows for later batches that are a little larger
_PATIENCE = 10  # seconds; the trainer has opened the channel already
# By this, C sees tensors without a call of Python. torch has it since 2.10.
_EXCHANGE = getattr(torch.Tensor, "__dlpack_c_exchange_api__", None)
_PAUSE = 0.05  # seconds until a thread that nothing can wake looks again
_SLICE = 1  # seconds between two checks that the trainer still lives
_MAX_PLACES = 4096  # limit for the tensors that a worker remembers
_COLLATE = _utils.collate.__name__
_STATE_FORMAT = 1  # version of the result of state_dict()
_T_co = typing.TypeVar("_T_co", covariant=True)  # a sample, as in torch


class _Link:
    """The facts that the trainer and the workers of one iterator share."""

    def __init__(self, given):
        self.name = new_name()
        self.path = os.environ.get("FSDP_SOCKET")
        self.done = None  # torch's event that ends the workers
        self.keeper = None  # set in a worker
        # If the user gave a client, workers connect with the same arguments.
        self._given = given and (given._path, given._reconnect)
        self._client = given
        self._sender = None

    def __getstate__(self):
        return {**self.__dict__, "_sender": None, "_client": None}

    def enter(self, start):
        """Begin as a worker, which may have been forked."""
        self._client, self.keeper = None, Keeper(start)
        self.keeper.watch()

    def connect(self):
        # A fork server has the environment of the time when it was started.
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
        """Return the sender of this worker."""
        if self._sender is None:
            self._sender = _Sender(self, get_worker_info().id)
        return self._sender


# --- in a worker --------------------------------------------------------------


class _Large:
    """A batch in torch's shared memory, which is sent instead of the batch."""

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
    """A tensor in a buffer, with the records that messages have of it."""

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
    """Stands for a batch whose elements are in the buffer already."""

    def __init__(self, samples):
        self.samples = samples


class _Sender:
    """The end of a worker: it collates into one buffer after another, and sends
    them."""

    def __init__(self, link, worker):
        self._link, self._worker = link, worker
        self._parent = os.getppid()
        self._generation = self._channel = self._item = None
        self._forget()

    def _forget(self):
        self._placed, self._records, self._at = [], {}, _batch.FIRST

    def use(self, generation):
        """Send the answers of the next tasks through this channel."""
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
        """Get a buffer. Return False if the trainer wants no more batches."""
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
        """Return a buffer as a storage of torch. It does not keep the item,
        which is sent while the worker still has the batch."""
        if address not in self._storages:
            import ctypes

            memory = (ctypes.c_uint8 * self._capacity).from_address(address)
            data = torch.frombuffer(memory, dtype=torch.uint8)
            self._storages[address] = _batch.storage_of(data)
        return self._storages[address]

    def place(self, shape, dtype):
        """Return a tensor in the buffer that is sent next, or None if it does
        not fit. Batches that have such a tensor at the same offset get the same
        object."""
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
        """Return an object that stands for the batch of samples, or None if
        torch must collate them, because the C code cannot."""
        self._forget()
        if _EXCHANGE is None or not self._begin():
            return None
        stacked = stack_plain(
            self._item, self._at, samples, torch.Tensor, _EXCHANGE
        )
        if stacked is None:
            return None
        batch = _Stacked(samples)
        self._at, record = stacked
        self._records[id(batch)] = record
        return batch

    def _send_plain(self, answer):
        """Send an answer that needs no pickle, or return False."""
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
        """Send an answer. `kept` is the state for Progress.receive(), if there
        is one."""
        if self._send_plain((self._worker, number, data, *kept)):
            return
        if type(data) is _Stacked:  # `kept` did not fit as well
            data = _utils.collate.default_collate(data.samples)
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
        # Functions of other modules could keep or change a tensor that is
        # reused.
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
        """Does nothing, for a batch that was handed out before."""

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
    """A channel, and the number of tasks that are answered through it."""

    def __init__(self, link, number, capacity, n_buffers):
        self.number, self.n_tasks = number, 0
        self.channel = link.channel(
            number, "consumer", capacity=capacity, credits=n_buffers, timeout=0
        )
        self.port = self.channel._port


def _is_sent(queue, poll):
    """Write what did not fit before. If it still does not fit, poll.poll()
    waits for room."""
    try:
        if queue.write():
            return True
        poll.register(queue.fileno(), select.POLLOUT)
        return False
    except OSError:
        return True  # The worker has died. torch notices this by itself.


class _Receiver:
    """The end of the trainer. One thread gives out tasks; the same thread, or
    the one that pins memory, receives the answers."""

    def __init__(self, link, n_tasks, learned):
        self._link = link
        self._learned = learned
        self.progress = None  # of the current epoch; the iterator sets it
        self._n_buffers = min(_MAX_BUFFERS, n_tasks + _SPARE)
        self._lock = threading.Lock()
        self._generations = collections.deque()  # the last one gets new tasks
        # Guards the pipes. Python may finalize an iterator, which ends its
        # workers, in a thread that has this lock.
        self._pipes = threading.RLock()
        self._full = set()  # queues with data that did not fit into their pipes
        self._writer = None  # the thread that writes this data
        # indexed by worker
        self._tasks = collections.defaultdict(collections.deque)

    # --- tasks ----------------------------------------------------------------

    def begin_task(self, worker, task):
        """Return the generation through which the worker is to answer."""
        with self._lock:
            if not self._generations:
                self._open(self._learned.get("capacity", _FIRST_CAPACITY))
            last = self._generations[-1]
            last.n_tasks += 1
            is_resume = isinstance(task, _utils.worker._ResumeIteration)
            self._tasks[worker].append((last, is_resume))
            return last.number

    def send(self, queue, data):
        """Write to a worker's pipe. If it is full, a thread writes the rest, so
        that the worker need not wait until the trainer asks for a batch. If no
        thread can be started, receive() does it."""
        with self._pipes:
            if queue.write(data):
                return
            self._full.add(queue)
            if self._writer is None:
                writer = threading.Thread(target=self._send_rest, daemon=True)
                with contextlib.suppress(RuntimeError):
                    writer.start()
                    self._writer = writer

    def _write_rest(self):
        """Write to the pipes that were full. Return an object that polls for
        room, or None if there is no rest."""
        poll = select.poll()
        with self._pipes:
            for queue in list(self._full):
                if _is_sent(queue, poll):
                    self._full.discard(queue)
            if self._full:
                return poll
            self._writer = None

    def _send_rest(self):
        while poll := self._write_rest():
            poll.poll(_PAUSE * 1000)

    def _end_task(self, worker, data):
        is_end = isinstance(data, _utils.worker._IterableDatasetStopIteration)
        tasks = self._tasks[worker]
        with self._lock:
            tasks.popleft()[0].n_tasks -= 1
            # A worker that has reached its end ignores the tasks that it was
            # given meanwhile.
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
        """Open a channel for batches of this size, if the broker has the memory."""
        if size > self._learned["capacity"]:
            capacity = int(size * _GROWTH) // _GRAIN * _GRAIN + _GRAIN
            with self._lock, contextlib.suppress(Error):
                self._open(capacity)

    def _current(self):
        """Return the oldest channel with unanswered tasks, or else the last one."""
        if len(self._generations) == 1:
            return self._generations[0]
        with self._lock:
            while len(self._generations) > 1 and not self._generations[0].n_tasks:
                self._generations.popleft().channel.close()
            return self._generations[0]

    def close(self):
        with self._pipes:
            self._full.clear()
        while self._generations:
            self._generations.popleft().channel.close()

    # --- answers --------------------------------------------------------------

    def _memory(self, generation, item):
        """Return the memory of an item. If the trainer holds so many items that
        workers would have too few buffers, the item becomes an ordinary tensor,
        or is copied if the broker has no new buffer yet."""
        if 2 * generation.port.held <= self._n_buffers:
            return memoryview(item)
        with self._lock:
            # Keep some buffers for workers without a task, for the next epoch.
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
        """Return the next answer, or raise queue.Empty as a queue does."""
        if not self._generations:
            # The thread that pins memory starts before the first task.
            time.sleep(min(timeout, _PAUSE))
            raise queue.Empty
        end = time.monotonic() + timeout
        while True:
            has_rest = self._full and not self._writer and self._write_rest()
            generation = self._current()
            left = max(0, end - time.monotonic())
            pause = min(left, _PAUSE)
            try:
                item = generation.port.receive(pause if has_rest else left)
            except Gone:
                continue  # A worker died. torch notices this by itself.
            except (Timeout, Ended) as error:
                if not left:
                    raise queue.Empty from None
                if isinstance(error, Ended):
                    time.sleep(pause)
                continue
            return self._accept(generation, item)

    def wake(self):
        """End the wait of the thread that receives."""
        if not self._generations:
            return
        sender = _Sender(self._link, None)
        sender.use(self._generations[-1].number)
        sender.send(None, None)
        sender.close()


# --- what torch takes for queues ----------------------------------------------


class _Answers(Queue):
    """The queue from all workers to the trainer."""

    def __init__(self, link, receiver):
        self._link, self._receiver = link, receiver
        self._trainer = os.getpid()

    def __getstate__(self):
        return {**self.__dict__, "_receiver": None}

    def put(self, answer):
        if os.getpid() == self._trainer:
            # torch's own items are not read by anyone, so this only wakes
            self._receiver.wake()
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
            # If the broker is gone, the answers of this worker are not needed.
            with contextlib.suppress(Error):
                self._link.sender().close()


def _work(link, start, loop, args):
    """Run a worker."""
    link.enter(start)
    loop(*args)


class _Context:
    """The part of a multiprocessing context that torch's iterator uses. The
    first queue that it makes is for the answers, and each later one for a
    worker."""

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
        return Tasks(self._link, self._receiver, self._n_queues - 2)


class _Changed:
    """A loader with some attributes replaced."""

    def __init__(self, loader, **changes):
        self.__dict__.update(changes)
        self._loader = loader

    def __getattr__(self, name):
        return getattr(self._loader, name)


# --- the class that users see -------------------------------------------------


def _check_torch():
    """Check that torch's loader is the one for which this file was written."""
    wanted = ["dataset_kind", "dataset", "index_queue", "data_queue", "done_event"]
    try:
        found = list(inspect.signature(_utils.worker._worker_loop).parameters)[:5]
        dataloader._MultiProcessingDataLoaderIter, _utils.worker._ResumeIteration
    except AttributeError as error:
        found = error
    if found != wanted:
        raise NotImplementedError(
            f"cannot use fsdp.torch.DataLoader with the loader of torch "
            f"{torch.__version__} ({found}); use torch's own with fsdp.torch.pack()"
        )


class DataLoader(torch.utils.data.DataLoader[_T_co]):
    """torch.utils.data.DataLoader, whose workers hand over batches in the
    broker's memory.

    Arguments, batches, order, random numbers and errors are those of torch's
    loader. A batch is a view of one buffer of a channel, and may be changed in
    place. The workers get the buffer back when the last of its tensors has been
    freed. A batch may be kept for any time: if the trainer holds too many,
    later ones become ordinary tensors of the broker, or copies if the broker
    has no memory for them. Without workers, and with more than 63, it works
    like torch's loader.

    `client` is the connection to use, such as fsdp.connect(reconnect=2). Each
    worker connects to the same broker, and waits for it as long. The default is
    fsdp.default().
    """

    def __init__(self, dataset, *args, client=None, **options):
        super().__init__(dataset, *args, **options)
        self.client = client

    def _get_iterator(self):
        """Return an iterator for a new epoch, or for the rest of an epoch.
        torch calls it."""
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
        if link.connect().closed:  # this is checked before workers are started
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
        """Return the arguments that must be the same when a state is loaded."""
        names = "num_workers", "batch_size", "drop_last", "persistent_workers"
        kinds = "sampler", "batch_sampler"
        return {
            **{name: getattr(self, name) for name in names},
            **{name: type(getattr(self, name)).__name__ for name in kinds},
            "dataset": ("map-style", "iterable")[self._dataset_kind],
        }

    def state_dict(self):
        """Return how far the loader is: after the last batch that the newest
        iterator has handed out. Batches that workers fetched in advance do not
        count.

        The state is plain data, for torch.save() and pickle. It has the random
        numbers of this process, of the generators and of the workers, and the
        states of the data set and the sampler, if these have `state_dict()` and
        `load_state_dict()`.
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
        """Continue at the next iter() where a loader with the same arguments
        was: with the rest of its epoch, or with the next epoch if that one was
        over.

        This also restores the random numbers of torch (on the CPU), numpy and
        Python in this process, and those of the generators that the loader was
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
