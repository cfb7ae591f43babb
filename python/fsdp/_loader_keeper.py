"""What fetches samples for fsdp.torch.DataLoader, kept and brought back.

What is kept of a worker is its random numbers, and the states of its data set
and of the iterator, if they have `state_dict()` and `load_state_dict()`. It is
sent with a batch from time to time. A worker that is to go on where another one
was takes what was kept last, and fetches again what came after it.
"""

import contextlib
import copy
import pickle
import time

from torch._utils import ExceptionWrapper
from torch.utils.data import IterableDataset, _DatasetKind, get_worker_info

from . import _random_state

_SHARE = 100  # keeping takes at most one of so many parts of a worker's time


def is_stateful(thing):
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def state_of(thing):
    """A copy of its state, or None: it has none."""
    return copy.deepcopy(thing.state_dict()) if is_stateful(thing) else None


def load(thing, state):
    if state is not None:
        thing.load_state_dict(copy.deepcopy(state))


def can_keep(fetcher):
    """An iterator without state can only be brought back from its start."""
    iterator = getattr(fetcher, "dataset_iter", None)
    return iterator is None or is_stateful(iterator) or is_stateful(fetcher.dataset)


def keep(fetcher):
    """The state after the last batch."""
    dataset, iterator = fetcher.dataset, getattr(fetcher, "dataset_iter", None)
    return {
        "dataset": None if iterator is dataset else state_of(dataset),
        "iterator": state_of(iterator),
        "ended": getattr(fetcher, "ended", False),
        "is_between": False,
    }


def keep_between(dataset):
    """The state between two epochs, when no iterator is left."""
    return {"dataset": state_of(dataset), "is_between": True}


def end_epoch(dataset, kept):
    """Have a data set that begins an epoch at the next iter(). At the first one
    after load_state_dict() it goes on where it was, which is the end."""
    load(dataset, kept["dataset"])
    if kept["dataset"] is not None and isinstance(dataset, IterableDataset):
        next(iter(dataset), None)


def bring_back(dataset, create, kept):
    """A fetcher, made by create(), as it was in an epoch."""
    load(dataset, kept["dataset"])
    fetcher = create()
    load(getattr(fetcher, "dataset_iter", None), kept["iterator"])
    fetcher.ended = kept["ended"]
    if fetcher.ended:
        next(fetcher.dataset_iter, None)  # so that the next one is of the next epoch
    return fetcher


def fetch_again(fetcher, indices):
    """Repeat what was fetched after that; its errors were reported then."""
    collate_fn = fetcher.collate_fn
    fetcher.collate_fn = getattr(collate_fn, "pass_over", collate_fn)
    for index in indices:
        with contextlib.suppress(Exception):
            fetcher.fetch(index)
    fetcher.collate_fn = collate_fn


class Keeper:
    """In a worker. `start` is what was kept of the one whose place it takes, and
    the indices of the batches after that; or None."""

    def __init__(self, start):
        self._start = start
        self._fetcher = None  # as long as none could be made
        self._kept_at, self._cost = time.monotonic(), 0

    def watch(self):
        """See the fetchers that torch's loop makes."""
        self._create = _DatasetKind.create_fetcher
        _DatasetKind.create_fetcher = self._created

    def _created(self, kind, dataset, *options):
        def create():
            return self._create(kind, dataset, *options)

        if dataset is not get_worker_info().dataset:
            return create()  # of another loader, in the data set
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
        """What is to be sent with an answer: a pickle, or None."""
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
        except Exception:  # It is an error only for those who want the state
            where = f"in DataLoader worker process {get_worker_info().id}"
            data = pickle.dumps(ExceptionWrapper(where=where))
        self._kept_at = time.monotonic()
        self._cost = self._kept_at - start
        return data
