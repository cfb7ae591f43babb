"""The weights of a model for serving engines, by name, from the broker.

A model is a folder of safetensors files, or the name of one on Hugging Face's
hub: the first process on the node reads it into a bundle, and the others attach
that. A model can also be a bundle that a program, such as a trainer, has
published. In place of a path, "fsdpd:llama/" stands for the newest version of a
bundle, and "fsdpd:llama/@3" for its version 3.
"""

import errno
import glob
import os

from ._default import default
from ._errors import NotFound, make
from ._format import files_of
from ._load import load_once
from .safetensors import name_of_files

_SCHEME = "fsdpd:"
_INDEX = "model.safetensors.index.json"


class Options:
    """The options of --model-loader-extra-config: `bundle`, in place of the
    model's files; `socket`, of the broker; `private`, for models that change
    their weights."""

    _TYPES = {"bundle": str, "socket": str, "private": bool}

    def __init__(self, extra):
        for key, value in extra.items():
            if key not in self._TYPES:
                known = ", ".join(self._TYPES)
                raise make(
                    errno.EINVAL,
                    f"model_loader_extra_config has {key!r}, which fsdpd does not "
                    f"know; use {known}",
                )
            if type(value) is not self._TYPES[key]:
                kind = self._TYPES[key].__name__
                raise make(
                    errno.EINVAL,
                    f"model_loader_extra_config has {value!r} for {key!r}; give a {kind}",
                )
        self.bundle = extra.get("bundle")
        self.socket = extra.get("socket")
        self.private = extra.get("private", False)


def _options_of(address):
    """Return (name, keywords of Client.bundle()) of "llama/" or "llama/@3"."""
    name, has_version, version = address.rpartition("/@")
    if not has_version:
        return address, {}
    if not version.isdecimal() or int(version) < 1:
        raise make(
            errno.EINVAL,
            f"{address!r} is not a version of a bundle; give a number from 1 after the @",
        )
    return f"{name}/", {"version": int(version)}


def _bundle_of(address, client):
    name, options = _options_of(address)
    try:
        return client.bundle(name, **options)
    except NotFound:
        pass
    raise make(
        errno.ENOENT,
        f"there is no bundle {address}; publish it, as fsdpctl load --prefix does",
    )


def _folder_of(path, revision, load_config, patterns):
    if os.path.isdir(path):
        return path
    if os.path.isabs(path):
        raise make(errno.ENOENT, f"there is no folder {path}; give that of the model")
    from huggingface_hub import snapshot_download

    return snapshot_download(
        path,
        revision=revision,
        cache_dir=load_config.download_dir,
        allow_patterns=patterns or ["*.safetensors", f"*{_INDEX}"],
        ignore_patterns=load_config.ignore_patterns,
    )


def _path_in(folder, patterns):
    """Return the index of a model, or the list of the files of the patterns, or of
    all."""
    index = os.path.join(folder, _INDEX)
    if patterns is None and os.path.exists(index):
        return index
    files = set()
    for pattern in patterns or ["*.safetensors"]:
        files.update(glob.glob(pattern, root_dir=folder))
    if not files:
        raise make(
            errno.ENOENT,
            f"{folder} has no safetensors files; convert the model, or use another "
            "load format",
        )
    return [os.path.join(folder, file) for file in sorted(files)]


def attach(source, load_config, options):
    """Return the bundle of a source: an object with `model_or_path`, `revision`
    and `allow_patterns_overrides`, as both engines describe their weights."""
    client, path = default(options.socket), source.model_or_path
    if path.startswith(_SCHEME):
        return _bundle_of(path.removeprefix(_SCHEME), client)
    patterns = source.allow_patterns_overrides
    folder = _folder_of(path, source.revision, load_config, patterns)
    # SGLang's sources have no subfolder.
    folder = os.path.join(folder, getattr(source, "subfolder", None) or "")
    path = _path_in(folder, patterns)
    return load_once(path, name_of_files(files_of(path)[0]), client=client)


def weights_of(bundle, options, prefix=""):
    """Yield (name, torch tensor) of each member. The memory is the broker's."""
    for name, tensor in bundle.items():
        yield prefix + name, tensor.torch(private=options.private)
