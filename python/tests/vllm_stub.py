"""The interface of vLLM 0.33.0 for model loaders and plug-ins: its names and
signatures, with as much behaviour as a loader needs. install() lets this module
take vLLM's place.

test_engines.py compares it with vLLM where that is installed.
"""

import dataclasses
import sys
import types
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import entry_points


@dataclasses.dataclass
class LoadConfig:
    load_format: str = "auto"
    download_dir: str | None = None
    model_loader_extra_config: dict = dataclasses.field(default_factory=dict)
    device: str | None = None
    ignore_patterns: list | str = dataclasses.field(
        default_factory=lambda: ["original/**/*"]
    )


@dataclasses.dataclass
class ModelConfig:
    model: str = "Qwen/Qwen3-0.6B"
    revision: str | None = None
    quantization: str | None = None
    #: Not in vLLM: makes the model. vLLM finds the class by the files of its
    # configuration.
    make: Callable | None = None


@dataclasses.dataclass
class VllmConfig:
    model_config: ModelConfig
    load_config: LoadConfig


class BaseModelLoader(ABC):
    def __init__(self, load_config):
        self.load_config = load_config

    def get_external_weight_memory(self, vllm_config):
        return 0

    @abstractmethod
    def download_model(self, model_config):
        raise NotImplementedError

    @abstractmethod
    def load_weights(self, model, model_config):
        raise NotImplementedError

    def create_model(self, vllm_config, model_config, prefix=""):
        return model_config.make()

    def load_model(self, vllm_config, model_config, prefix=""):
        model = self.create_model(vllm_config, model_config, prefix)
        self.load_weights(model, model_config)
        return model.eval()


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        subfolder: str | None = None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        is_unused_weight: Callable | None = None

    def get_all_weights(self, model_config, model):
        raise NotImplementedError

    def download_model(self, model_config):
        raise NotImplementedError

    def load_weights(self, model, model_config):
        raise NotImplementedError


_LOADERS = {"auto": DefaultModelLoader}


def register_model_loader(load_format):
    def _wrapper(model_loader_cls):
        assert issubclass(model_loader_cls, BaseModelLoader)
        _LOADERS[load_format] = model_loader_cls
        return model_loader_cls

    return _wrapper


def get_model_loader(load_config):
    if load_config.load_format not in _LOADERS:
        raise ValueError(f"Load format `{load_config.load_format}` is not supported")
    return _LOADERS[load_config.load_format](load_config)


def get_model(*, vllm_config, model_config=None, prefix="", load_config=None):
    loader = get_model_loader(load_config or vllm_config.load_config)
    return loader.load_model(
        vllm_config=vllm_config,
        model_config=model_config or vllm_config.model_config,
        prefix=prefix,
    )


def reload_weights(
    vllm_config, model, weights_iterator, weights_path, is_checkpoint_format
):
    config = vllm_config.model_config
    if weights_iterator is None:
        loader = get_model_loader(vllm_config.load_config)
        if weights_path is not None:
            config.model, config.revision = weights_path, None
        weights_iterator = loader.get_all_weights(config, model)
    model.load_weights(weights_iterator)


def load_general_plugins():
    for plugin in entry_points(group="vllm.general_plugins"):
        plugin.load()()


#: The modules of vLLM that have these names.
PLACES = {
    "vllm.config": [LoadConfig, ModelConfig, VllmConfig],
    "vllm.model_executor.model_loader": [
        BaseModelLoader,
        DefaultModelLoader,
        get_model,
        get_model_loader,
        register_model_loader,
    ],
    "vllm.model_executor.model_loader.reload.inplace": [reload_weights],
    "vllm.plugins": [load_general_plugins],
}


def install(places=PLACES, modules=sys.modules):
    """Makes `import vllm` find this module, in this process."""
    for place, things in places.items():
        parts = place.split(".")
        for n in range(1, len(parts) + 1):
            name = ".".join(parts[:n])
            if name not in modules:
                modules[name] = types.ModuleType(name)
                modules[name].__path__ = []
        for thing in things:
            setattr(modules[place], thing.__name__, thing)
