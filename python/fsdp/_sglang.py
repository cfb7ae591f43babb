"""SGLang's load format "private". SGLang calls register() in each process.

SGLang takes the loader of that format from a module that it does not contain.
Nothing of SGLang is imported until it asks for the loader.
"""

import importlib.util
import logging
import sys
import types

_PLACE = "sglang.private"
_MODULE = f"{_PLACE}.private_model_loader"


def _find(name):
    if name != "PrivateModelLoader":
        raise AttributeError(name)
    from ._sglang_loader import Loader

    return Loader


_module = types.ModuleType(_MODULE)
_module.__getattr__ = _find


def register():
    """The entry point of the group sglang.srt.plugins."""
    there = sys.modules.get(_MODULE) or importlib.util.find_spec(_PLACE)
    if there is None:
        sys.modules[_MODULE] = _module
    elif there is not _module:
        logging.getLogger("fsdp").warning(
            "SGLang's load format private is not fsdpd's, since there is a module %s; "
            "remove it to load by fsdpd",
            _PLACE,
        )
