import collections
import gc
import inspect
import re
import threading
import types
import weakref

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

import fsdp
import fsdp.safetensors
import fsdp.torch
from conftest import holds, run, until
from fsdp._dtypes import LONG_NAMES

DTYPES = [d for d in fsdp.DTYPES if hasattr(torch, LONG_NAMES[d])]
SHAPES = [(), (0,), (3,), (2, 3), (2, 0, 4)]
ASSIGNS = pytest.mark.skipif(
    "assign" not in inspect.signature(torch.nn.Module.load_state_dict).parameters,
    reason=f"torch {torch.__version__} has no load_state_dict(assign=True)",
)


def sample(dtype, shape):
    n = int(torch.tensor(shape).prod()) if shape else 1
    kind = getattr(torch, LONG_NAMES[dtype])
    return torch.arange(n, dtype=torch.float32).reshape(shape).to(kind)


def bits(tensor):
    """Returns the bits, which can be compared for every dtype."""
    return tensor.contiguous().reshape(-1).view(torch.uint8)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", DTYPES)
def test_each_dtype_and_shape_round_trips(c, dtype, shape):
    source = sample(dtype, shape)
    tensor = c.put("a/x", source)
    assert (tensor.dtype, tensor.shape) == (dtype, shape)
    got = tensor.torch()
    assert (got.dtype, got.shape) == (source.dtype, source.shape)
    assert bits(got).equal(bits(source))


def test_all_dtypes_are_tested():
    assert len(DTYPES) == 17 or torch.__version__ < "2.3"


@pytest.mark.parametrize("dtype", DTYPES)
def test_strided_views_and_offsets(c, dtype):
    base = c.alloc((4, 6), dtype)
    source = sample(dtype, (4, 6))
    base.torch().copy_(source)
    view = base.view((2, 3), strides=(12, 2), offset=fsdp.DTYPES[dtype])
    got = view.torch()
    assert got.stride() == (12, 2)
    assert bits(got).equal(bits(source[::2, 1::2]))


def test_a_transposed_tensor_can_be_put(c):
    source = torch.arange(6).reshape(2, 3).t()
    assert c.put("a/x", source).torch().equal(source)


def test_a_parameter_can_be_put(c):
    parameter = torch.nn.Parameter(torch.ones(3))
    got = c.put("a/x", parameter).torch()
    assert got.equal(torch.ones(3)) and not got.requires_grad


def test_the_torch_tensor_is_the_memory_itself(c):
    tensor = c.alloc((4,), "f32")
    tensor.torch().fill_(7)
    tensor.publish("a/x")
    assert c["a/x"].numpy().tolist() == [7] * 4
    assert c["a/x"].torch().data_ptr() == tensor.torch().data_ptr()


def test_from_dlpack_accepts_a_tensor(c):
    tensor = c.put("a/x", torch.arange(3))
    assert torch.from_dlpack(tensor).equal(torch.arange(3))


def test_a_storage_holds_the_tensor_by_itself(c):
    tensor = c.put("a/x", torch.arange(10.0))
    piece = tensor.torch()[3:7].reshape(2, 2)
    assert holds(c, "a/x") == 2
    tensor.release()
    del tensor
    gc.collect()
    assert holds(c, "a/x") == 1
    c.remove("a/x")
    c.put("b/x", torch.zeros(10))
    assert piece.tolist() == [[3, 4], [5, 6]]


def test_autograd_drops_its_hold_on_its_own_thread(c):
    c.put("a/x", torch.arange(4.0))
    weight = torch.ones(4, requires_grad=True)
    (weight * c["a/x"].torch()).sum().backward()
    assert weight.grad.tolist() == [0, 1, 2, 3]
    gc.collect()
    until(lambda: holds(c, "a/x") == 0, "the graph is gone")


def test_a_private_tensor_can_be_written_without_changing_the_original(c):
    tensor = c.put("a/x", torch.arange(3))
    mine = tensor.torch(private=True)
    mine += 5
    assert mine.tolist() == [5, 6, 7]
    assert tensor.torch().tolist() == [0, 1, 2]


@ASSIGNS
def test_a_model_takes_its_weights_from_a_bundle(broker, c):
    made = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
    with c.stage("m/") as stage:
        for name, weight in made.state_dict().items():
            stage.put(name, weight)
    with fsdp.connect(broker.path) as other:
        with torch.device("meta"):
            model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.BatchNorm1d(4))
        bundle = other.bundle("m/")
        model.load_state_dict(bundle.state_dict(), assign=True)
        x = torch.ones(2, 3)
        assert model.eval()(x).equal(made.eval()(x))
        # The weight is in the broker's memory, and stays when everything else
        # is gone.
        weight = bundle["0.weight"].torch().data_ptr()
        assert model[0].weight.data_ptr() == weight
        del bundle
        c.remove("m/")
        assert model(x).equal(made(x))


class Pretrained(torch.nn.Module):
    """A stand-in for a model of transformers. It is made without memory, and
    then each of its parameters is replaced by a tensor of the state_dict."""

    def __init__(self, config):
        super().__init__()
        self.layer = torch.nn.Linear(config["n_in"], config["n_out"])

    def forward(self, x):
        return self.layer(x)

    @classmethod
    def from_pretrained(cls, path, *, config, state_dict):
        assert path is None
        with torch.device("meta"):
            model = cls(config)
        for name, tensor in state_dict.items():
            owner, _, attribute = name.rpartition(".")
            parameter = torch.nn.Parameter(tensor.to(config["dtype"]))
            setattr(model.get_submodule(owner), attribute, parameter)
        return model.eval()


@ASSIGNS
def test_pretrained_models_of_replicas_share_one_copy(c, broker, tmp_path):
    config = {"n_in": 3, "n_out": 4, "dtype": torch.bfloat16}
    made = Pretrained(config).bfloat16()
    fsdp.safetensors.save_file(made.state_dict(), tmp_path / "model.safetensors")
    x = torch.ones(2, 3, dtype=torch.bfloat16)
    for _ in range(2):
        with fsdp.connect(broker.path) as replica:
            bundle = fsdp.load_once(tmp_path / "model.safetensors", "m/", client=replica)
            weights = bundle.state_dict()
            model = Pretrained.from_pretrained(None, config=config, state_dict=weights)
            assert model(x).equal(made(x))
            for name, parameter in model.named_parameters():
                assert parameter.data_ptr() == bundle[name].torch().data_ptr()


@pytest.mark.parametrize("dtype", ["bool", "bf16", "f32", "c64", "i64"])
def test_large_private_tensors_of_a_bundle_have_their_dtype(c, dtype):
    with c.stage("t/m/", replace=True) as stage:
        tensor = stage.alloc("w", (1024, 1024), dtype)
        tensor.torch().view(torch.uint8).fill_(1)
    tensor = c.bundle("t/m/")["w"]
    mine = tensor.torch(private=True)
    assert mine.shape == (1024, 1024) and torch.equal(mine, tensor.torch())
    mine.zero_()
    assert not bits(mine).any() and bits(tensor.torch()).all()


@ASSIGNS
def test_a_private_state_dict_can_be_trained(c):
    with c.stage("m/") as stage:
        stage.put("weight", torch.ones(2, 3))
        stage.put("bias", torch.zeros(2))
    bundle = c.bundle("m/")
    model = torch.nn.Linear(3, 2)
    model.load_state_dict(bundle.state_dict(private=True), assign=True)
    model.weight.data += 1
    assert bundle["weight"].torch().equal(torch.ones(2, 3))


def test_a_write_to_a_published_tensor_reports_its_name_and_the_line(broker):
    status, out, err = run(
        broker,
        """
        import fsdp, torch
        with fsdp.connect() as writer:
            writer.put("a/written", torch.arange(3))
        c = fsdp.connect()
        t = c["a/written"].torch()
        print("before", flush=True)
        t[0] = 1
        print("after", flush=True)
        """,
    )
    assert (status, out) == (-11, "before\n")
    assert 'cannot write to the tensor a/written: it is published' in err
    assert re.search(r'File "<string>", line 8', err)


@pytest.mark.parametrize("kind", ["published", "writable"])
def test_a_forked_child_is_told_that_it_did_not_inherit_a_tensor(broker, kind):
    status, out, err = run(
        broker,
        f"""
        import fsdp, os, torch
        c = fsdp.connect()
        x = c.alloc(3, "f32")
        x.torch().zero_()
        if "{kind}" == "published":
            x.publish("a/inherited")
        t = x.torch()
        pid = os.fork()
        if pid == 0:
            t.sum()
            os._exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
        """,
    )
    name = "a/inherited" if kind == "published" else "(it has no name)"
    assert (status, out) == (0, "-11\n")
    assert f"cannot use the tensor {name}: this process was forked" in err
    assert "cannot write" not in err


def test_another_fault_is_not_reported_as_a_write(broker):
    status, _, err = run(
        broker,
        """
        import ctypes, fsdp, torch
        c = fsdp.connect()
        t = c.put("a/other", torch.arange(3)).torch()
        ctypes.string_at(0)
        """,
    )
    assert status == -11
    assert "cannot write" not in err and "Segmentation fault" in err


def test_the_interpreter_ends_without_messages(broker):
    assert run(
        broker,
        """
        import fsdp, torch, threading
        c = fsdp.connect()
        t = c.put("a/end", torch.arange(3.0))
        x = t.torch()
        w = torch.ones(3, requires_grad=True)
        y = (w * x).sum()
        del t, c
        """,
    ) == (0, "", "")


def test_queues_pass_tickets_on(broker, c):
    status, out, err = run(
        broker,
        """
        import fsdp, fsdp.torch, torch, torch.multiprocessing as mp

        def work(queue, replies):
            for expected in (0, 3, 20):
                x = queue.get()
                assert x.flatten()[0] == expected, x
                storage = fsdp.torch.storage_of(x)
                replies.put(fsdp.torch._fsdp.find_export(
                    storage.data_ptr(), storage.nbytes()
                ) is not None)

        if __name__ == "__main__":
            fsdp.torch.install()
            fsdp.torch.install()
            c = fsdp.default()
            context = mp.get_context("fork")
            queue, replies = context.SimpleQueue(), context.SimpleQueue()
            worker = context.Process(target=work, args=(queue, replies))
            worker.start()
            x = c.put("a/queue", torch.arange(12).reshape(3, 4)).torch()
            assert x.shape == (3, 4)
            queue.put(x)
            assert replies.get() is True
            queue.put(x.t()[3:])
            assert replies.get() is True
            queue.put(torch.tensor([20]))
            assert replies.get() is False
            worker.join()
            assert worker.exitcode == 0
            print(len(c.who("a/queue")))
        """,
    )
    assert (status, out, err) == (0, "1\n", "")


def test_loaders_with_workers_read_a_data_set_of_the_broker(broker):
    status, out, err = run(
        broker,
        """
        import fsdp, fsdp.torch, torch

        class Data(torch.utils.data.Dataset):
            def __init__(self):
                self.rows = fsdp.default().put("a/rows", torch.arange(80.0).reshape(8, 10))
            def __len__(self):
                return 8
            def __getitem__(self, i):
                return fsdp.default()["a/rows"].torch()[i]

        if __name__ == "__main__":
            fsdp.torch.install()
            loader = torch.utils.data.DataLoader(Data(), batch_size=4, num_workers=2)
            print(sum(batch.sum().item() for batch in loader))
        """,
    )
    assert (status, out, err) == (0, "3160.0\n", "")


def test_threads_can_create_and_free_storages(c):
    c.put("a/x", torch.arange(8))

    def work():
        for _ in range(300):
            assert c["a/x"].torch().sum() == 28

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    del threads
    assert holds(c, "a/x") == 0


# --- copies to a device -------------------------------------------------------


def test_to_moves_all_tensors_in_a_batch(c):
    Pair = collections.namedtuple("Pair", "x y")
    x = torch.arange(3.0)
    batch = {"a": [x, Pair(x, "text")], "b": (None, 7), "c": c.put("a/x", x)}
    moved = fsdp.torch.to(batch, "meta")
    assert str(moved) == str({
        "a": [x.to("meta"), Pair(x.to("meta"), "text")], "b": (None, 7), "c": x.to("meta")
    })
    here = fsdp.torch.to(batch, "cpu")
    assert here["a"][0] is x and here["c"].data_ptr() == c["a/x"].torch().data_ptr()


class Copied:
    """Stands for a tensor, because there is no GPU here."""

    def to(self, device, non_blocking):
        return str(device), non_blocking


class Checked:
    """A lock that fails if a thread that holds it takes it again."""

    def __init__(self):
        self.is_held = False

    def __enter__(self):
        assert not self.is_held
        self.is_held = True

    def __exit__(self, *_):
        self.is_held = False


class Stream:
    def __init__(self):
        self.events = []

    def record_event(self):
        self.events.append(types.SimpleNamespace(is_done=False))
        self.events[-1].query = lambda event=self.events[-1]: event.is_done
        return self.events[-1]


def test_to_keeps_a_batch_until_its_copy_is_done(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(fsdp.torch, "_copies", [])
    batches = [[Copied()] for _ in range(3)]
    kept = [weakref.ref(batch[0]) for batch in batches]
    while batches:
        assert fsdp.torch.to(batches.pop(0), "cuda:0") == [("cuda:0", True)]
    assert all(one() for one in kept)
    stream.events[1].is_done = True
    fsdp.torch.to([], "cuda:0")
    assert [one() is None for one in kept] == [False, True, False]
    assert fsdp.torch.to([Copied()], "cpu") == [("cpu", False)]
    assert fsdp.torch.to([Copied()], "cuda:0", non_blocking=False) == [("cuda:0", False)]
    assert len(stream.events) == 4


class Reentrant:
    """An object whose __del__() makes a copy, as any object's may."""

    def __del__(self):
        fsdp.torch.to([], "cuda:0")


def test_an_object_that_was_copied_may_copy_when_it_is_freed(monkeypatch):
    stream = Stream()
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: stream)
    monkeypatch.setattr(fsdp.torch, "_copies", [])
    monkeypatch.setattr(fsdp.torch, "_copies_lock", Checked())
    fsdp.torch.to([Reentrant()], "cuda:0")
    stream.events[0].is_done = True
    fsdp.torch.to([], "cuda:0")
    assert len(stream.events) == 3


# --- tensors that are more than their elements ----------------------------------

UNUSUAL = {
    "sparse": (lambda: torch.eye(3).to_sparse(), "to_dense"),
    "rows": (lambda: torch.eye(3).to_sparse_csr(), "to_dense"),
    "quantized": (
        lambda: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
        "int_repr.*dequantize",
    ),
    "nested": (
        lambda: torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "unbind",
    ),
    "meta": (lambda: torch.empty(3, device="meta"), "one with elements"),
}


def stage(c, tensor):
    with c.stage("a/m/") as staged:
        staged.put("w", tensor)


@pytest.mark.filterwarnings("ignore")  # torch warns about such tensors
@pytest.mark.parametrize("kind", UNUSUAL)
def test_a_tensor_with_more_than_its_elements_is_refused(c, tmp_path, kind):
    """The error says what to pass instead, and the attempt leaves nothing."""
    make, way = UNUSUAL[kind]
    if kind == "nested" and not hasattr(torch.nested, "nested_tensor"):
        pytest.skip("this torch has no nested tensors")
    path = tmp_path / "file"
    for call in (
        lambda: c.put("a/x", make()),
        lambda: stage(c, make()),
        lambda: fsdp.safetensors.save_file({"x": make()}, path),
    ):
        with pytest.raises(fsdp.Invalid, match=f"cannot copy .*; give .*{way}"):
            call()
    assert c.names() == [] and not path.exists()


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", ["sparse", "quantized"])
def test_channels_pass_unusual_tensors_as_torch_pickles_them(c, kind):
    tensor = UNUSUAL[kind][0]()
    with c.channel("a/t", "producer", capacity=1 << 16) as producer:
        with c.channel("a/t") as consumer:
            producer.put(tensor)
            came = consumer.get()
    dense = "dequantize" if kind == "quantized" else "to_dense"
    assert torch.equal(getattr(came, dense)(), getattr(tensor, dense)())


def test_a_conjugated_view_is_saved_with_its_values(tmp_path):
    tensor = torch.tensor([1 + 2j, 3 - 4j]).conj()
    fsdp.safetensors.save_file({"x": tensor}, tmp_path / "file")
    with fsdp.safetensors.safe_open(tmp_path / "file", "np") as file:
        assert file.get_tensor("x").tolist() == [1 - 2j, 3 + 4j]
