"""vLLM loads and updates models from the broker; its interface is a stub here."""

import json
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fsdp
import vllm_stub
from fsdp.safetensors import save_file
from tiny_model import Model

FIRST = {"embed.weight": torch.arange(8.0).reshape(4, 2).bfloat16(), "norm": torch.ones(2)}


def later(n):
    """The weights of a later version."""
    return {name: weight + n for name, weight in FIRST.items()}


def has(model, weights):
    return all(model.get_parameter(name).equal(weights[name].float()) for name in weights)


class Vllm:
    stub = vllm_stub

    def __init__(self):
        vllm_stub.load_general_plugins()

    def start(self, path, model, revision=None, **extra):
        config = vllm_stub.ModelConfig(str(path), revision, make=lambda: model)
        load = vllm_stub.LoadConfig("fsdpd", "/cache", extra)
        self.config = vllm_stub.VllmConfig(config, load)
        self.model = vllm_stub.get_model(vllm_config=self.config)

    def update(self, path):
        vllm_stub.reload_weights(self.config, self.model, None, path, True)

    def loader(self, **extra):
        return vllm_stub.get_model_loader(vllm_stub.LoadConfig("fsdpd", None, extra))


@pytest.fixture(params=[Vllm])
def engine(request, c):
    before = set(sys.modules)
    request.param.stub.install()
    yield request.param()
    for name in set(sys.modules) - before:
        if name.startswith(("vllm", "fsdp._vllm")):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path):
    """A model of two files, and one that its index does not name."""
    folder = tmp_path / "llama"
    folder.mkdir()
    files = {name: f"{i}.safetensors" for i, name in enumerate(FIRST)}
    for name, file in files.items():
        save_file({name: FIRST[name]}, folder / file)
    save_file(later(99), folder / "consolidated.safetensors")
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": files}))
    return folder


@pytest.fixture
def empty(tmp_path):
    """A model's folder without weights."""
    (tmp_path / "empty").mkdir()
    return tmp_path / "empty"


def publish(c, weights, **options):
    with c.stage("llama/", **options) as stage:
        for name, weight in weights.items():
            stage.put(name, weight)


def bundles(c):
    return {(entry["bundle"], entry["version"]) for entry in c.entries()}


def test_a_model_of_several_files_is_read_once(engine, c, folder):
    one, other = Model(), Model()
    engine.start(folder, one)
    ((name, _),) = bundles(c)
    engine.start(folder, other)
    assert has(one, FIRST) and has(other, FIRST)
    assert bundles(c) == {(name, 1)} and name.split("/")[1].startswith("llama.")
    # The model got the broker's memory, and has a copy.
    held = fsdp.default().bundle(name).state_dict()
    assert one.seen == other.seen == {n: t.data_ptr() for n, t in held.items()}
    assert one.norm.data_ptr() != one.seen["norm"]


def test_a_changed_model_is_read_again(engine, c, folder):
    engine.start(folder, Model())
    save_file({"norm": later(5)["norm"]}, folder / "1.safetensors")
    engine.update(str(folder))
    assert has(engine.model, {**FIRST, "norm": later(5)["norm"]})
    assert len(bundles(c)) == 2


def test_a_download_is_what_loads(engine, c, folder):
    config = types.SimpleNamespace(model=str(folder), model_path=str(folder), revision=None)
    engine.loader().download_model(config)
    assert len(bundles(c)) == 1
    engine.start(folder, Model())
    assert len(bundles(c)) == 1 and has(engine.model, FIRST)


def test_a_bundle_needs_no_files(engine, c, empty):
    publish(c, FIRST)
    engine.start(empty, Model(), bundle="llama/")
    assert has(engine.model, FIRST)


def test_a_bundle_that_is_replaced_meanwhile_is_loaded_whole(engine, c, empty):
    publish(c, FIRST)
    model = Model(lambda: publish(c, later(1), replace=True))
    engine.start(empty, model, bundle="llama/")
    assert has(model, FIRST) and c.bundle("llama/").version == 2


def test_a_served_model_gets_newer_weights(engine, c, empty):
    publish(c, FIRST)
    engine.start(empty, Model(), bundle="llama/")
    publish(c, later(1), replace=True, keep=2)
    version = c.bundle("llama/", newer_than=1, timeout=20).version
    engine.update(f"fsdpd:llama/@{version}")
    assert has(engine.model, later(1))
    publish(c, later(2), replace=True, keep=2)
    engine.update("fsdpd:llama/")
    assert has(engine.model, later(2))


def test_all_ranks_can_load_the_same_version(engine, c, empty):
    publish(c, FIRST, keep=2)
    publish(c, later(1), replace=True, keep=2)
    engine.start(empty, Model(), bundle="llama/@1")
    assert has(engine.model, FIRST)
