"""What fetches samples for fsdp.torch.DataLoader, kept and brought back: the states
of the data set and of its iterator, if they have `state_dict()` and
`load_state_dict()`.
"""

import contextlib
import copy

from torch.utils.data import IterableDataset


def is_stateful(thing):
    return hasattr(thing, "state_dict") and hasattr(thing, "load_state_dict")


def state_of(thing):
    """A copy of its state, or None: it has none."""
    return copy.deepcopy(thing.state_dict()) if is_stateful(thing) else None


def load(thing, state):
    if state is not None:
        thing.load_state_dict(copy.deepcopy(state))


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
