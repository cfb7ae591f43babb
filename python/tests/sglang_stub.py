"""The interface of SGLang 0.5.23 for model loaders, updates and plug-ins: its
names and signatures, with as much behaviour as a loader needs. install() lets
this module take SGLang's place.

test_engines.py compares it with SGLang where that is installed.
"""

import dataclasses
import enum
import importlib
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable
from importlib.metadata import entry_points

import torch
import vllm_stub


class LoadFormat(str, enum.Enum):
    AUTO = "auto"
    SAFETENSORS = "safetensors"
    PRIVATE = "private"


@dataclasses.dataclass
class LoadConfig:
    load_format: str | LoadFormat = LoadFormat.AUTO
    download_dir: str | None = None
    model_loader_extra_config: dict | None = dataclasses.field(default_factory=dict)
    ignore_patterns: list | str | None = None
    draft_model_idx: int | None = None

    def __post_init__(self):
        self.load_format = LoadFormat(self.load_format)


@dataclasses.dataclass
class ModelConfig:
    model_path: str
    revision: str | None = None
    quantization: str | None = None
    #: Not in SGLang: makes the model. SGLang finds the class by the files of
    # its configuration.
    make: Callable | None = None


@dataclasses.dataclass
class DeviceConfig:
    device: str = "cpu"


class BaseModelLoader(ABC):
    def __init__(self, load_config):
        self.load_config = load_config

    @abstractmethod
    def download_model(self, model_config):
        raise NotImplementedError

    @abstractmethod
    def load_model(self, *, model_config, device_config):
        raise NotImplementedError


class DefaultModelLoader(BaseModelLoader):
    @dataclasses.dataclass
    class Source:
        model_or_path: str
        revision: str | None
        prefix: str = ""
        fall_back_to_pt: bool = True
        allow_patterns_overrides: list[str] | None = None
        model_config: ModelConfig | None = None

        @classmethod
        def init_new(cls, model_config, model):
            return cls(
                model_config.model_path,
                model_config.revision,
                allow_patterns_overrides=getattr(
                    model, "allow_patterns_overrides", None
                ),
                model_config=model_config,
            )

    def __init__(self, load_config):
        super().__init__(load_config)
        unknown = set(load_config.model_loader_extra_config) - {
            "enable_multithread_load",
            "num_threads",
        }
        if unknown:
            raise ValueError(f"Unexpected extra config keys: {unknown}")

    def _get_weights_iterator(
        self,
        source,
        *,
        resolved_source=None,
        startup_prefetch_started=False,
        startup_prefetch_active=False,
    ):
        raise NotImplementedError

    def _get_all_weights(self, model_config, model):
        yield from self._get_weights_iterator(
            DefaultModelLoader.Source.init_new(model_config, model)
        )
        for source in getattr(model, "secondary_weights", ()):
            yield from self._get_weights_iterator(source)

    def download_model(self, model_config):
        raise NotImplementedError

    def load_model(self, *, model_config, device_config):
        model = model_config.make()
        self.load_weights_and_postprocess(
            model,
            self._get_all_weights(model_config, model),
            torch.device(device_config.device),
        )
        return model.eval()

    @staticmethod
    def load_weights_and_postprocess(model, weights, target_device):
        model.load_weights(weights)


def get_model_loader(load_config, model_config=None):
    if load_config.load_format != LoadFormat.PRIVATE:
        return DefaultModelLoader(load_config)
    try:
        module = importlib.import_module("sglang.private.private_model_loader")
        return module.PrivateModelLoader(load_config)
    except ImportError:
        raise ValueError("Failed to import sglang.private.private_model_loader")


def get_model(*, model_config, load_config, device_config):
    loader = get_model_loader(load_config, model_config)
    return loader.load_model(model_config=model_config, device_config=device_config)


@dataclasses.dataclass(frozen=True, kw_only=True)
class WeightUpdater:
    model_config: ModelConfig
    get_model: Callable

    def update_weights_from_disk(
        self, model_path, load_format, weight_name_filter=None, recapture_cuda_graph=False
    ):
        self.model_config.model_path = model_path
        loader = get_model_loader(LoadConfig(load_format=load_format), self.model_config)
        if not isinstance(loader, DefaultModelLoader):
            return False, f"Failed to get model loader: {loader}."
        source = DefaultModelLoader.Source.init_new(self.model_config, self.get_model())
        try:
            weights = loader._get_weights_iterator(source)
        except Exception as e:
            return False, f"Failed to get weights iterator: {e}."
        loader.load_weights_and_postprocess(
            self.get_model(), weights, torch.device("cpu")
        )
        return True, "Succeeded to update model weights."


def load_plugins():
    for plugin in entry_points(group="sglang.srt.plugins"):
        plugin.load()()


#: The modules of SGLang that have these names.
PLACES = {
    "sglang.srt.configs.device_config": [DeviceConfig],
    "sglang.srt.configs.load_config": [LoadConfig, LoadFormat],
    "sglang.srt.configs.model_config": [ModelConfig],
    "sglang.srt.model_executor.model_runner_components.weight_updater": [WeightUpdater],
    "sglang.srt.model_loader": [get_model],
    "sglang.srt.model_loader.loader": [
        BaseModelLoader,
        DefaultModelLoader,
        get_model_loader,
    ],
    "sglang.srt.plugins": [load_plugins],
}


def install(modules=sys.modules):
    """Makes `import sglang` find this module, in this process."""
    vllm_stub.install(PLACES, modules)
