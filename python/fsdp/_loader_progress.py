"""How far the epoch of an fsdp.torch.DataLoader is, and iterators that begin in
the middle of one.

An epoch that was begun is begun again with the random numbers it had, and what
was drawn from the sampler until then is drawn again and passed over, unless the
sampler has a state of its own. The data set's state is in _loader_keeper.py.
"""

import itertools

from torch.utils.data import BatchSampler, _DatasetKind, dataloader

from . import _loader_keeper, _random_state
from ._errors import Invalid


def _is_map(loader):
    return loader._dataset_kind == _DatasetKind.Map


# --- samplers -----------------------------------------------------------------


def _owner(index_sampler):
    """Where the state of a sampler is: torch's BatchSampler has none."""
    if isinstance(index_sampler, BatchSampler):
        if not _loader_keeper.is_stateful(index_sampler):
            return index_sampler.sampler
    return index_sampler


def _sampler_state(index_sampler, iterator, is_between=False):
    """None: the sampler has no state, and is drawn from again."""
    state = {
        "sampler": _loader_keeper.state_of(_owner(index_sampler)),
        "iterator": None if is_between else _loader_keeper.state_of(iterator),
        "is_between": is_between,
    }
    has_state = state["sampler"] is not None or state["iterator"] is not None
    return state if has_state else None


def _bring_back(index_sampler, iterator, state, n_drawn):
    """What is to be drawn next; `iterator` is new."""
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


# --- without workers ----------------------------------------------------------


class SingleIterator(dataloader._SingleProcessDataLoaderIter):
    """torch's iterator without workers. `epoch` is one to go on with, or None."""

    def __init__(self, loader, epoch, is_first):
        self._n_drawn, self._is_finished = 0, False
        self._before = None  # what was kept before the epoch
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
