"""vLLM's load format "fsdpd". vLLM calls register() in each of its processes.

No other module imports this file, so vLLM is imported only if it runs.
"""

import errno
import itertools
import types

from vllm.model_executor.model_loader import BaseModelLoader, register_model_loader

from ._errors import make
from ._weights import Options, attach, weights_of


def _main_source(model_config, model, options):
    bundle = options.bundle
    is_bundle = bundle is not None and not model_config.model.startswith("fsdpd:")
    return types.SimpleNamespace(
        model_or_path=f"fsdpd:{bundle}" if is_bundle else model_config.model,
        revision=model_config.revision,
        allow_patterns_overrides=getattr(model, "allow_patterns_overrides", None),
    )


def _missing(model, loaded):
    """Return the parameters that were not loaded, except those that their
    module makes or changes after loading. vLLM's own loader makes the same
    exceptions."""
    missing = {name for name, _ in model.named_parameters()} - set(loaded)
    for name, module in model.named_modules():
        method = getattr(module, "quant_method", None)
        if getattr(method, "uses_meta_device", False) or hasattr(
            method, "process_weights_after_loading"
        ):
            missing -= {each for each, _ in module.named_parameters(prefix=name)}
    return missing


class Loader(BaseModelLoader):
    """The loader for --load-format fsdpd."""

    def __init__(self, load_config):
        super().__init__(load_config)
        self._options = Options(load_config.model_loader_extra_config)

    def download_model(self, model_config):
        """Load the weights into the broker, where load_weights() finds them."""
        source = _main_source(model_config, None, self._options)
        attach(source, self.load_config, self._options)

    def get_all_weights(self, model_config, model):
        """Return (name, tensor) of all weights. vLLM's reload_weights() calls
        it, too.

        All of them are found and held before the first is loaded.
        """
        sources = [_main_source(model_config, model, self._options)]
        sources += getattr(model, "secondary_weights", ())
        bundles = [attach(each, self.load_config, self._options) for each in sources]
        return itertools.chain.from_iterable(
            weights_of(bundle, self._options, getattr(source, "prefix", ""))
            for bundle, source in zip(bundles, sources)
        )

    def load_weights(self, model, model_config):
        """Copy the weights into the model's parameters, by the model's own method."""
        loaded = model.load_weights(self.get_all_weights(model_config, model))
        if loaded is None or model_config.quantization is not None:
            return
        missing = _missing(model, loaded)
        if missing:
            raise make(
                errno.EINVAL,
                f"the model's weights lack {', '.join(sorted(missing))}; publish "
                "them all, or correct the model's configuration",
            )


def register():
    """The entry point of the group vllm.general_plugins."""
    register_model_loader("fsdpd")(Loader)
