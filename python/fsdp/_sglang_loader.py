"""The loader that SGLang uses for its load format "private"."""

import copy
import dataclasses
import errno

from sglang.srt.configs.load_config import LoadFormat
from sglang.srt.model_loader.loader import DefaultModelLoader

from ._errors import make
from ._weights import Options, attach, weights_of


class Loader(DefaultModelLoader):
    """The loader for --load-format private, and for {"load_format": "private"}
    of an update.

    It is a subclass of SGLang's own loader, because SGLang updates weights only
    by a loader of that class. Only the source of the weights differs.
    """

    # An update does not repeat the options of the start.
    _of_start = Options({})

    def __init__(self, load_config):
        extra = load_config.model_loader_extra_config or {}
        self._options = Options(extra) if extra else Loader._of_start
        if extra:
            Loader._of_start = Options(
                {key: value for key, value in extra.items() if key != "bundle"}
            )
        if load_config.draft_model_idx is not None:
            raise make(
                errno.EINVAL,
                "fsdpd does not load the layers of a draft model one by one; add "
                "--speculative-draft-load-format auto",
            )
        # SGLang's loader would refuse our options and the name of our format.
        load_config = copy.copy(load_config)
        load_config.load_format = LoadFormat.SAFETENSORS
        load_config.model_loader_extra_config = {}
        super().__init__(load_config)

    def _attach(self, source):
        path = source.model_or_path
        # Further sources of a model have no model_config, and are files.
        if self._options.bundle is not None and source.model_config is not None:
            if not path.startswith("fsdpd:"):
                path = f"fsdpd:{self._options.bundle}"
        source = dataclasses.replace(source, model_or_path=path)
        return attach(source, self.load_config, self._options)

    def download_model(self, model_config):
        """Load the weights into the broker, where load_model() finds them."""
        self._attach(self.Source.init_new(model_config, None))

    def _get_weights_iterator(self, source):
        # The weights are found before this returns, so SGLang can still refuse
        # an update without harm.
        return weights_of(self._attach(source), self._options, source.prefix)
