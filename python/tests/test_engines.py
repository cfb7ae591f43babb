"""Tests that vLLM and SGLang load and update models from the broker. All tests
but the last one use stubs of the engines.
"""

import importlib.util
import json
import pathlib
import subprocess
import sys
import types

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fsdp
import sglang_stub
import vllm_stub
from conftest import start
from fsdp.safetensors import save_file
from tiny_model import Model

TESTS = pathlib.Path(__file__).parent
FIRST = {"embed.weight": torch.arange(8.0).reshape(4, 2).bfloat16(), "norm": torch.ones(2)}


def later(n):
    """Returns the weights of a later version."""
    return {name: weight + n for name, weight in FIRST.items()}


def has(model, weights):
    return all(model.get_parameter(name).equal(weights[name].float()) for name in weights)


class Vllm:
    stub, refused = vllm_stub, "^"

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


class Sglang:
    stub, refused = sglang_stub, "^Failed to get weights iterator: "

    def __init__(self):
        sglang_stub.load_plugins()
        assert "fsdp._sglang_loader" not in sys.modules  # it would import SGLang

    def start(self, path, model, revision=None, **extra):
        self.config = sglang_stub.ModelConfig(str(path), revision, make=lambda: model)
        self.model = sglang_stub.get_model(
            model_config=self.config,
            load_config=sglang_stub.LoadConfig("private", "/cache", extra),
            device_config=sglang_stub.DeviceConfig(),
        )

    def update(self, path):
        updater = sglang_stub.WeightUpdater(
            model_config=self.config, get_model=lambda: self.model
        )
        is_done, why = updater.update_weights_from_disk(path, "private")
        if not is_done:
            raise fsdp.Error(why)

    def loader(self, **extra):
        return sglang_stub.get_model_loader(sglang_stub.LoadConfig("private", None, extra))


@pytest.fixture(params=[Vllm, Sglang])
def engine(request, c):
    before = set(sys.modules)
    request.param.stub.install()
    yield request.param()
    for name in set(sys.modules) - before:
        if name.startswith(("vllm", "sglang", "fsdp._vllm", "fsdp._sglang")):
            del sys.modules[name]


@pytest.fixture
def folder(tmp_path):
    """A folder with a model of two files, and with one that the index does not
    name."""
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
    # The model was given the broker's memory, and has copied it.
    held = fsdp.default().bundle(name).state_dict()
    assert one.seen == other.seen == {n: t.data_ptr() for n, t in held.items()}
    assert one.norm.data_ptr() != one.seen["norm"]


def test_a_model_without_a_tensor_of_its_index_is_refused(engine, c, folder):
    save_file({"other": FIRST["norm"]}, folder / "1.safetensors")
    why = "index says that tensor 'norm' is in 1.safetensors, but it is not there"
    with pytest.raises(fsdp.Invalid, match=why):
        engine.start(folder, Model())
    assert bundles(c) == set()


def test_a_changed_model_is_read_again(engine, c, folder):
    engine.start(folder, Model())
    save_file({"norm": later(5)["norm"]}, folder / "1.safetensors")
    engine.update(str(folder))
    assert has(engine.model, {**FIRST, "norm": later(5)["norm"]})
    assert len(bundles(c)) == 2


def test_a_download_loads_the_model(engine, c, folder):
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


def test_an_update_that_fails_leaves_the_model(engine, c, empty):
    publish(c, FIRST)
    engine.start(empty, Model(), bundle="llama/")
    for path in ("fsdpd:none/", "fsdpd:llama/@7"):
        with pytest.raises(fsdp.Error, match=f"{engine.refused}there is no bundle {path[6:]};"):
            engine.update(path)
    assert has(engine.model, FIRST)


@pytest.mark.parametrize(
    "path, extra, why",
    [
        ("", {"bundles": "llama/"}, "'bundles', which fsdpd does not know; use bundle"),
        ("", {"bundle": 7}, "7 for 'bundle'; give a str"),
        ("", {"private": "yes"}, "'yes' for 'private'; give a bool"),
        ("", {"bundle": "llama/@new"}, "not a version of a bundle; give a number"),
        ("", {"bundle": "llama/@0"}, "not a version of a bundle; give a number"),
        ("", {"bundle": "llama/"}, "no bundle llama/; publish it"),
        ("", {}, "has no safetensors files; convert the model"),
        ("/none/such", {}, "there is no folder /none/such; give that of the model"),
        ("", {"socket": "/none/such"}, "cannot connect to fsdpd at /none/such.*; start it"),
    ],
)
def test_invalid_settings_and_models_are_refused(engine, empty, path, extra, why):
    with pytest.raises(fsdp.Error, match=why):
        engine.start(path or empty, Model(), **extra)


class Rude(Model):
    """A model that changes the tensors that it is given."""

    def load_weights(self, weights):
        return super().load_weights((name, weight.add_(1)) for name, weight in weights)


def test_a_model_may_change_private_weights(engine, c, folder):
    publish(c, FIRST)
    engine.start(folder, Rude(), private=True)
    assert has(engine.model, later(1))
    # An update by SGLang has no options.
    engine.update("fsdpd:llama/")
    assert has(engine.model, later(1))
    assert c["llama/norm"].torch().equal(FIRST["norm"])


def test_a_model_can_name_the_sources_of_more_weights(engine, tmp_path, empty):
    (tmp_path / "more" / "sub").mkdir(parents=True)
    save_file({"weight": FIRST["embed.weight"]}, tmp_path / "more" / "sub" / "x.safetensors")
    save_file({"norm": FIRST["norm"]}, empty / "part.safetensors")
    save_file(later(9), empty / "rest.safetensors")
    model = Model()
    model.allow_patterns_overrides = ["p*.safetensors"]
    source = engine.stub.DefaultModelLoader.Source(str(tmp_path / "more"), None, prefix="embed.")
    if engine.stub is vllm_stub:
        source.subfolder = "sub"
    else:
        source.allow_patterns_overrides = ["sub/*"]
    model.secondary_weights = [source]
    engine.start(empty, model)
    assert has(model, FIRST)


def test_a_model_of_the_hub_is_downloaded(engine, monkeypatch, folder):
    asked = []
    hub = types.ModuleType("huggingface_hub")
    hub.snapshot_download = lambda *args, **more: asked.append((args, more)) or str(folder)
    monkeypatch.setitem(sys.modules, "huggingface_hub", hub)
    engine.start("meta/llama", Model(), revision="main")
    assert has(engine.model, FIRST)
    ((args, more),) = asked
    assert args == ("meta/llama",) and more.pop("ignore_patterns", 0) != 0
    assert more == {
        "revision": "main",
        "cache_dir": "/cache",
        "allow_patterns": ["*.safetensors", "*model.safetensors.index.json"],
    }


# --- of one engine ------------------------------------------------------------


@pytest.mark.parametrize("engine", [Vllm], indirect=True)
def test_the_error_to_vllm_names_missing_weights(engine, c, empty):
    publish(c, {"norm": FIRST["norm"]})
    with pytest.raises(fsdp.Invalid, match="lack embed.weight; publish"):
        engine.start(empty, Model(), bundle="llama/")
    model = Model()
    model.embed.quant_method = types.SimpleNamespace(uses_meta_device=True)
    engine.start(empty, model, bundle="llama/")
    config = types.SimpleNamespace(model="", revision=None, quantization="fp8")
    engine.loader(bundle="llama/").load_weights(Model(), config)


@pytest.mark.parametrize("engine", [Sglang], indirect=True)
def test_an_unknown_format_private_of_sglang_is_reported(engine, caplog):
    sglang_stub.load_plugins()
    assert not caplog.records
    sys.modules["sglang.private.private_model_loader"] = types.ModuleType("theirs")
    sglang_stub.load_plugins()
    assert "is not fsdpd's" in caplog.text
    with pytest.raises(AttributeError):
        engine.loader()


@pytest.mark.parametrize("engine", [Sglang], indirect=True)
def test_sglang_loads_drafts_with_its_own_loader(engine):
    with pytest.raises(fsdp.Invalid, match="--speculative-draft-load-format auto"):
        sglang_stub.get_model_loader(sglang_stub.LoadConfig("private", draft_model_idx=1))


# --- several processes, and the real engines ----------------------------------

REPLICAS = """
import os, sys
sys.path.insert(0, sys.argv[1])
import fsdp.torch, vllm_stub
from tiny_model import Model
vllm_stub.install()
vllm_stub.load_general_plugins()
config = vllm_stub.ModelConfig(sys.argv[2], make=Model)
config = vllm_stub.VllmConfig(config, vllm_stub.LoadConfig("fsdpd"))
r, w = os.pipe()
children = []
for _ in range(4):
    children.append(os.fork())
    if children[-1] == 0:
        os.close(w)
        os.read(r, 1)  # Until all of them are there.
        model = vllm_stub.get_model(vllm_config=config)
        os._exit(model.norm.tolist() != [1, 1])
os.close(w)
print([os.waitpid(child, 0)[1] for child in children])
"""


def test_processes_that_start_at_once_load_once(broker, c, folder):
    process = start(broker, REPLICAS, arguments=[TESTS, folder])
    assert process.communicate(timeout=300) == ("[0, 0, 0, 0]\n", "")
    assert len(bundles(c)) == 1


def test_no_engine_is_imported_needlessly(broker):
    script = "import fsdp, fsdp._sglang, sys; print({'vllm', 'sglang'} & set(sys.modules))"
    assert start(broker, script).communicate() == ("set()\n", "")


@pytest.mark.parametrize("name", ["vllm", "sglang"])
def test_the_stub_matches_the_engine(broker, c, name, folder):
    """This runs in another Python, in which the stubs are not installed."""
    if importlib.util.find_spec(name) is None:
        pytest.skip(f"{name} is not installed")
    publish(c, FIRST)
    script = TESTS / "real_engine.py"
    done = subprocess.run(
        [sys.executable, script, name, folder], capture_output=True, text=True
    )
    if done.returncode == 77:
        pytest.skip(f"{name} cannot be imported: {done.stdout.strip()}")
    assert done.returncode == 0, done.stdout + done.stderr
