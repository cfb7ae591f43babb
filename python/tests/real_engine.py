"""Compares a stub with the engine that is installed, and loads a model with
that engine: real_engine.py NAME FOLDER. The exit status is 77 if the engine
cannot be imported.
"""

import dataclasses
import importlib
import inspect
import sys
import types


def parameters(function):
    return [
        (p.name, p.kind, p.default)
        for p in inspect.signature(function).parameters.values()
    ]


def compare_class(ours, theirs):
    if dataclasses.is_dataclass(ours):
        known = {field.name for field in dataclasses.fields(ours)} - {"make"}
        if dataclasses.is_dataclass(theirs):
            there = {field.name for field in dataclasses.fields(theirs)}
        else:
            there = set(inspect.signature(theirs).parameters)
        assert known <= there, f"{theirs} has no {known - there}"
    for name, value in vars(ours).items():
        is_special = name.startswith("__") and name != "__init__"
        if inspect.isclass(value):
            compare_class(value, getattr(theirs, name))
        elif callable(getattr(ours, name)) and not is_special:
            if name != "__init__" or not dataclasses.is_dataclass(ours):
                compare(getattr(ours, name), getattr(theirs, name))


def compare(ours, theirs):
    if inspect.isclass(ours):
        compare_class(ours, theirs)
    else:
        mine, real = parameters(ours), parameters(theirs)
        assert mine == real, f"{theirs} has {real}, the stub {mine}"


def weights_of_vllm(folder):
    from vllm.config.load import LoadConfig
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.plugins import load_general_plugins

    load_general_plugins()
    loader = get_model_loader(LoadConfig(load_format="fsdpd"))
    config = types.SimpleNamespace(model=folder, revision=None)
    return loader.get_all_weights(config, None)


def weights_of_sglang(folder):
    from sglang.srt.configs.load_config import LoadConfig
    from sglang.srt.model_loader.loader import get_model_loader
    from sglang.srt.plugins import load_plugins

    load_plugins()
    extra = {"bundle": "llama/"}
    loader = get_model_loader(
        LoadConfig(load_format="private", model_loader_extra_config=extra)
    )
    config = types.SimpleNamespace(model_path=folder, revision=None)
    return loader._get_weights_iterator(loader.Source.init_new(config, None))


def main(name, folder):
    stub = importlib.import_module(f"{name}_stub")
    try:
        there = {place: importlib.import_module(place) for place in stub.PLACES}
    except Exception as error:  # for example, because there is no driver
        print(f"{type(error).__name__}: {error}")
        return 77
    for place, things in stub.PLACES.items():
        for thing in things:
            compare(thing, getattr(there[place], thing.__name__))
    weights = dict(globals()[f"weights_of_{name}"](folder))
    assert weights["norm"].tolist() == [1, 1], weights
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
