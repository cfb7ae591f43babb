"""The fetchers of fsdp.torch.DataLoader, whose states are saved and restored.

The state of a worker is its random numbers, and the states of its data set and
of the iterator, if these have `state_dict()` and `load_state_dict()`. A worker
sends it with a batch from time to time. A worker that continues the work of
another one restores the state that was sent last, and fetches again everything
that came after it.
"""

import contextlib
import copy
import pickle
import time

from torch._utils import ExceptionWrapper
from torch.utils.data import IterableDataset, _DatasetKind, get_worker_info

from . import _random_state

_SHARE = 100  # saving takes at most 1 / _SHARE of a worker's time


def is_stateful(thing):
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def state_of(thing):
    """Return a copy of its state, or None if it has no state."""
    return copy.deepcopy(thing.state_dict()) if is_stateful(thing) else None


def load(thing, state):
    if state is not None:
        thing.load_state_dict(copy.deepcopy(state))


def can_keep(fetcher):
    """Return whether the state can be saved. A fetcher whose iterator has no
    state can only be restored to its beginning."""
    iterator = getattr(fetcher, "dataset_iter", None)
    return iterator is None or is_stateful(iterator) or is_stateful(fetcher.dataset)


def keep(fetcher):
    """Return the state after the last batch."""
    dataset, iterator = fetcher.dataset, getattr(fetcher, "dataset_iter", None)
    return {
        "dataset": None if iterator is dataset else state_of(dataset),
        "iterator": state_of(iterator),
        "ended": getattr(fetcher, "ended", False),
        "is_between": False,
    }


def keep_between(dataset):
    """Return the state between two epochs, when there is no iterator."""
    return {"dataset": state_of(dataset), "is_between": True}


def end_epoch(dataset, kept):
    """Restore a data set so that it begins an epoch at the next iter(). The
    first iter() after load_state_dict() continues where the data set was, which
    is the end of an epoch, so it is used up here."""
    load(dataset, kept["dataset"])
    if kept["dataset"] is not None and isinstance(dataset, IterableDataset):
        next(iter(dataset), None)


def bring_back(dataset, create, kept):
    """Return a fetcher, made by create(), with a state within an epoch."""
    load(dataset, kept["dataset"])
    fetcher = create()
    load(getattr(fetcher, "dataset_iter", None), kept["iterator"])
    fetcher.ended = kept["ended"]
    if fetcher.ended:
        # so that the next iterator begins the next epoch
        next(fetcher.dataset_iter, None)
    return fetcher


def fetch_again(fetcher, indices):
    """Repeat the fetches after the saved state. Their errors were reported before."""
    collate_fn = fetcher.collate_fn
    fetcher.collate_fn = getattr(collate_fn, "pass_over", collate_fn)
    for index in indices:
        with contextlib.suppress(Exception):
            fetcher.fetch(index)
    fetcher.collate_fn = collate_fn


class Keeper:
    """Saves the state of a worker, in the worker. `start` is the saved state of
    the worker whose work it continues, with the indices of the batches after
    that state, or None."""

    def __init__(self, start):
        self._start = start
        self._fetcher = None  # None until a fetcher has been made
        self._kept_at, self._cost = time.monotonic(), 0

    def watch(self):
        """Watch which fetchers torch's loop makes."""
        self._create = _DatasetKind.create_fetcher
        _DatasetKind.create_fetcher = self._created

    def _created(self, kind, dataset, *options):
        def create():
            return self._create(kind, dataset, *options)

        if dataset is not get_worker_info().dataset:
            return create()  # it belongs to another loader, within the data set
        start, self._start = self._start, None
        kept, indices = start or (None, ())
        self._fetcher = self._start_at(dataset, create, kept)
        fetch_again(self._fetcher, indices)
        self._can_keep = can_keep(self._fetcher)
        return self._fetcher

    def _start_at(self, dataset, create, kept):
        if kept is None:
            return create()
        if kept["is_between"]:
            end_epoch(dataset, kept)
            _random_state.put_process(kept["random"])
            return create()
        fetcher = bring_back(dataset, create, kept)
        _random_state.put_process(kept["random"])
        return fetcher

    def keep(self, is_between):
        """Return the state that is sent with an answer, as a pickle, or None."""
        start = time.monotonic()
        if self._fetcher is None:
            return None
        if not is_between:
            is_early = start - self._kept_at < _SHARE * self._cost
            if is_early or not self._can_keep:
                return None
        try:
            fetcher = self._fetcher
            kept = keep_between(fetcher.dataset) if is_between else keep(fetcher)
            kept["random"] = _random_state.of_process()
            data = pickle.dumps(kept, pickle.HIGHEST_PROTOCOL)
        except Exception:  # only a user who wants the state gets the error
            where = f"in DataLoader worker process {get_worker_info().id}"
            data = pickle.dumps(ExceptionWrapper(where=where))
        self._kept_at = time.monotonic()
        self._cost = self._kept_at - start
        return data
