"""The progress of an epoch of fsdp.torch.DataLoader, and iterators that begin
in the middle of an epoch.

To continue an epoch, it is begun again with the same random numbers. The
indices that were drawn before are drawn from the sampler again and ignored,
unless the sampler has a state. _loader_keeper.py has the part of the workers.
"""

import copy
import itertools
import numbers
import pickle

from torch._utils import ExceptionWrapper
from torch.utils.data import BatchSampler, _DatasetKind, dataloader

from . import _loader_keeper, _random_state
from ._errors import Invalid


def _is_map(loader):
    return loader._dataset_kind == _DatasetKind.Map


# --- samplers -----------------------------------------------------------------


def _owner(index_sampler):
    """Return the object that has the state of a sampler. torch's BatchSampler
    has no state of its own."""
    if isinstance(index_sampler, BatchSampler):
        if not _loader_keeper.is_stateful(index_sampler):
            return index_sampler.sampler
    return index_sampler


def _sampler_state(index_sampler, iterator, is_between=False):
    """Return None if the sampler has no state, so that indices must be drawn again."""
    state = {
        "sampler": _loader_keeper.state_of(_owner(index_sampler)),
        "iterator": None if is_between else _loader_keeper.state_of(iterator),
        "is_between": is_between,
    }
    has_state = state["sampler"] is not None or state["iterator"] is not None
    return state if has_state else None


def _bring_back(index_sampler, iterator, state, n_drawn):
    """Return the iterator that draws the next indices. `iterator` is new."""
    if state is None:
        for n in range(n_drawn):
            if next(iterator, iterator) is iterator:
                raise Invalid(
                    f"cannot go on after batch {n_drawn} of the epoch: the sampler "
                    f"has only {n}; load the state with the same data set and sampler"
                )
        return iterator
    _loader_keeper.load(_owner(index_sampler), state["sampler"])
    iterator = iter(index_sampler)
    if state["is_between"]:
        next(iterator, None)
        return iter(index_sampler)
    _loader_keeper.load(iterator, state["iterator"])
    return iterator


def _plain_index(index):
    if isinstance(index, list):
        return [_plain_index(one) for one in index]
    is_number = isinstance(index, numbers.Integral) and not isinstance(index, bool)
    return int(index) if is_number else index


# --- without workers ----------------------------------------------------------


class SingleIterator(dataloader._SingleProcessDataLoaderIter):
    """torch's iterator without workers. `epoch` is the epoch to continue, or None."""

    def __init__(self, loader, epoch, is_first):
        self._n_drawn, self._is_finished = 0, False
        self._before = None  # the state that was saved before the epoch
        if epoch is not None:
            self._begin_again(loader, epoch)
        elif not is_first and _loader_keeper.is_stateful(loader.dataset):
            self._before = _loader_keeper.keep_between(loader.dataset)
        self._begun = _random_state.of_loader(loader)
        super().__init__(loader)
        self._sampler_before = None
        if epoch is not None:
            self._go_on(epoch)
        elif not is_first:
            self._sampler_before = self._state_of_sampler(is_between=True)

    def _begin_again(self, loader, epoch):
        self._before = kept = epoch["workers"][0]["kept"]
        if kept is not None and kept["is_between"]:
            random = _random_state.of_process()
            _loader_keeper.end_epoch(loader.dataset, kept)
            _random_state.put_process(random)
        if not epoch["is_finished"]:
            _random_state.put_loader(loader, epoch["begun"])

    def _state_of_sampler(self, is_between=False):
        return _sampler_state(self._index_sampler, self._sampler_iter, is_between)

    def _go_on(self, epoch):
        self._sampler_before, kept = epoch["sampler"], self._before
        n_drawn = 0 if epoch["is_finished"] else epoch["n_drawn"]
        n_again = n_drawn if _is_map(self) else 0
        self._sampler_iter = _bring_back(
            self._index_sampler, self._sampler_iter, epoch["sampler"], n_again
        )
        self._n_drawn = self._num_yielded = n_drawn
        if kept is not None and not kept["is_between"]:
            self._dataset_fetcher = _loader_keeper.bring_back(
                self._dataset, self._create, kept
            )
        elif not _is_map(self):
            indices = itertools.islice(self._sampler_iter, n_drawn)
            _loader_keeper.fetch_again(self._dataset_fetcher, indices)

    def _create(self):
        return _DatasetKind.create_fetcher(
            self._dataset_kind,
            self._dataset,
            self._auto_collation,
            self._collate_fn,
            self._drop_last,
        )

    def _next_index(self):
        index = super()._next_index()
        self._n_drawn += 1
        return index

    def _next_data(self):
        try:
            return super()._next_data()
        except StopIteration:
            self._is_finished = True
            raise

    def _kept(self):
        fetcher = self._dataset_fetcher
        if self._is_finished:
            is_stateful = _loader_keeper.is_stateful(self._dataset)
            return _loader_keeper.keep_between(self._dataset) if is_stateful else None
        if self._n_drawn == 0:
            return self._before
        iterator = getattr(fetcher, "dataset_iter", None)
        if any(map(_loader_keeper.is_stateful, (self._dataset, iterator))):
            return _loader_keeper.keep(fetcher)
        return None

    def epoch(self):
        sampler = self._sampler_before
        if self._n_drawn or self._is_finished:
            sampler = self._state_of_sampler(self._is_finished)
        return {
            "begun": self._begun,
            "n_drawn": self._n_drawn,
            "is_finished": self._is_finished,
            "sampler": sampler,
            "workers": [{"kept": self._kept()}],
        }


# --- with workers -------------------------------------------------------------


class _Worker:
    """The last saved state of a worker, and what was handed out of it since
    then: indices of a map-style data set, or the number of batches of an
    iterable one."""

    def __init__(self, kept, since):
        self.kept, self.since = kept, since

    def state(self):
        kept = self.kept
        if isinstance(kept, bytes):
            kept = pickle.loads(kept)
        if isinstance(kept, ExceptionWrapper):
            kept.reraise()
        since = self.since if isinstance(self.since, int) else _plain_index(self.since)
        return {"kept": kept, "since": since}


class Progress:
    """The progress of an epoch with workers. Only batches that were handed out
    count, not those that were fetched in advance."""

    def __init__(self, is_map, n_workers):
        self._is_map = is_map
        # random numbers when workers and epoch began
        self.created = self.begun = None
        self.n_batches = 0
        self.n_drawn, self.sampler = 0, None
        self.last_worker, self.is_finished = n_workers - 1, False
        nothing = [] if is_map else 0
        self._workers = [_Worker(None, copy.copy(nothing)) for _ in range(n_workers)]
        self._tasks, self._arrived, self._ahead = {}, {}, {}

    def go_on(self, epoch):
        """Continue where an epoch was left."""
        self.n_batches, self.n_drawn = epoch["n_batches"], epoch["n_drawn"]
        self.sampler, self.last_worker = epoch["sampler"], epoch["last_worker"]
        self._ahead = dict.fromkeys(epoch["ahead"])
        workers = epoch["workers"]
        self._workers = [_Worker(one["kept"], copy.copy(one["since"])) for one in workers]

    def is_ahead(self, position):
        return position in self._ahead

    def give(self, number, worker, position, index, sampler):
        self._tasks[number] = worker, position, index, sampler

    def receive(self, worker, number, kept):
        """Take the state of a worker. It arrives before its batch is handed
        out. At the beginning of an epoch it replaces all earlier states."""
        if isinstance(number, int):
            self._arrived[number] = kept
            return
        self._arrived.clear()
        self._workers[worker].kept = kept

    def first_of(self, worker):
        """Return the number of the worker's next batch. Each worker keeps its
        own order."""
        return next(n for n, task in self._tasks.items() if task[0] == worker)

    def hand_out(self, number):
        worker, position, index, sampler = self._tasks.pop(number)
        self.last_worker = worker
        self.n_batches += 1
        self._hand_out_of(self._workers[worker], number, index)
        if self._is_map:
            self._ahead[position] = sampler
            while self.n_drawn in self._ahead:
                self.sampler = self._ahead.pop(self.n_drawn)
                self.n_drawn += 1

    def _hand_out_of(self, worker, number, index):
        kept = self._arrived.pop(number, None)
        if kept is not None:
            worker.kept, worker.since = kept, [] if self._is_map else 0
        elif self._is_map:
            worker.since.append(index)
        else:
            worker.since += 1

    def epoch(self):
        return {
            "created": self.created,
            "begun": self.begun,
            "n_batches": self.n_batches,
            "n_drawn": self.n_drawn,
            "ahead": sorted(self._ahead),
            "last_worker": self.last_worker,
            "is_finished": self.is_finished,
            "sampler": self.sampler,
            "workers": [worker.state() for worker in self._workers],
        }


def _has_workers(loader, epoch):
    """Return whether there is an epoch whose workers must be restored."""
    if epoch is None:
        return False
    return loader.persistent_workers or not epoch["is_finished"]


def starts(loader, epoch):
    """Return what each worker begins with."""
    if not _has_workers(loader, epoch):
        return [None] * loader.num_workers
    if _is_map(loader):
        return [(one["kept"], one["since"]) for one in epoch["workers"]]
    index = None if loader.batch_size is None else [None] * loader.batch_size
    # The worker must also repeat the call in which its data set ended.
    more = 1 if epoch["is_finished"] else 0
    return [(one["kept"], [index] * (one["since"] + more)) for one in epoch["workers"]]


class Iterator(dataloader._MultiProcessingDataLoaderIter):
    """torch's iterator with workers. `learned` belongs to the loader; it has
    the progress of the newest iterator."""

    def __init__(self, loader, receiver, learned, epoch):
        self._receiver, self._learned, self._epoch = receiver, learned, epoch
        self._limit = loader.timeout
        self._now = self._created = _random_state.of_loader(loader)
        if _has_workers(loader, epoch):
            self._created = epoch["created"]
            _random_state.put_loader(loader, self._created)
        super().__init__(loader)

    def _reset(self, loader, first_iter=False):
        epoch, self._epoch = self._epoch, None
        self._timeout, self._position = self._limit, 0
        self._progress = Progress(_is_map(self), self._num_workers)
        self._progress.created = self._created
        if epoch is not None:
            first_iter = self._begin_again(loader, epoch)
        elif "progress" in self._learned:
            sampler = _sampler_state(self._index_sampler, None, is_between=True)
            self._progress.sampler = sampler
        self._progress.begun = _random_state.of_loader(loader)
        self._receiver.progress = self._learned["progress"] = self._progress
        n_tasks, self._prefetch_factor = self._prefetch_factor, 0
        super()._reset(loader, first_iter)
        self._prefetch_factor = n_tasks
        if epoch is not None:
            self._go_on(epoch)
        self._is_sampler_stateful = self._sampler_state_now() is not None
        for _ in range(self._prefetch_factor * self._num_workers):
            self._try_put_index()

    def _begin_again(self, loader, epoch):
        """Restore the random numbers with which an epoch began, or those for
        the next epoch. Return whether it is the first epoch of the workers."""
        if not epoch["is_finished"]:
            _random_state.put_loader(loader, epoch["begun"])
            return True
        if self._persistent_workers:
            _random_state.put_loader(loader, self._now)
        return not self._persistent_workers

    def _go_on(self, epoch):
        sampler, n_again = epoch["sampler"], 0
        if epoch["is_finished"]:
            sampler = sampler and {**sampler, "is_between": True}
            self._progress.sampler = sampler
        else:
            self._progress.go_on(epoch)
            self._num_yielded = epoch["n_batches"]
            self._timeout = 0  # workers may need long to fetch again
            for _ in range(epoch["last_worker"] + 1):
                next(self._worker_queue_idx_cycle)
            self._position = epoch["n_drawn"]
        self._sampler_iter = _bring_back(
            self._index_sampler, self._sampler_iter, sampler, self._position
        )

    def _next_index(self):
        while True:
            index = super()._next_index()
            position, self._position = self._position, self._position + 1
            if not self._progress.is_ahead(position):
                self._drawn = position, index, self._sampler_state()
                return index

    def _sampler_state(self):
        return self._sampler_state_now() if self._is_sampler_stateful else None

    def _sampler_state_now(self):
        return _sampler_state(self._index_sampler, self._sampler_iter)

    def _try_put_index(self):
        number = self._send_idx
        super()._try_put_index()
        if self._send_idx > number:
            self._progress.give(number, self._task_info[number][0], *self._drawn)

    def _process_data(self, data, *worker):
        # torch before 2.6 does not pass the worker, and counts the batch after
        # this call.
        number = self._rcvd_idx - len(worker)
        if not getattr(self, "_in_order", True):  # torch has it since 2.6
            number = self._progress.first_of(*worker)
        self._progress.hand_out(number)
        self._timeout = self._limit
        return super()._process_data(data, *worker)

    def _next_data(self):
        try:
            return super()._next_data()
        except StopIteration:
            self._progress.is_finished = True
            raise


# Errors and profiles show the names of torch's classes.
SingleIterator.__name__ = dataloader._SingleProcessDataLoaderIter.__name__
Iterator.__name__ = dataloader._MultiProcessingDataLoaderIter.__name__
