"""The random number generators that a data loader uses, as plain data."""

import random

import torch

try:
    import numpy
except ImportError:  # torch can do without
    numpy = None


def _plain(thing):
    """Return a state of numpy without arrays, so that torch.load() accepts it."""
    if isinstance(thing, dict):
        return {key: _plain(value) for key, value in thing.items()}
    return thing.tolist() if isinstance(thing, numpy.ndarray) else thing


def of_process():
    """Return the states of the generators that all code of a process shares."""
    state = {"torch": torch.get_rng_state().numpy().tobytes()}
    state["python"] = random.getstate()
    if numpy is not None:
        state["numpy"] = _plain(numpy.random.get_state(legacy=False))
    return state


def put_process(state):
    torch.set_rng_state(torch.frombuffer(bytearray(state["torch"]), dtype=torch.uint8))
    random.setstate(state["python"])
    if numpy is not None and "numpy" in state:
        numpy.random.set_state(state["numpy"])


def _generators(loader):
    """Return the generators that the user gave to a loader or its samplers. One
    can occur several times."""
    batches = loader.batch_sampler
    owners = loader, loader.sampler, batches, getattr(batches, "sampler", None)
    found = (getattr(owner, "generator", None) for owner in owners)
    return [one for one in found if isinstance(one, torch.Generator)]


def of_loader(loader):
    given = [one.get_state().numpy().tobytes() for one in _generators(loader)]
    return {"process": of_process(), "generators": given}


def put_generators(loader, state):
    for generator, data in zip(_generators(loader), state["generators"]):
        data = torch.frombuffer(bytearray(data), dtype=torch.uint8)
        generator.set_state(data)


def put_loader(loader, state):
    put_process(state["process"])
    put_generators(loader, state)
