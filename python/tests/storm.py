"""Random things that a thread does with the package. It checks the bytes of all
that it keeps."""

import asyncio
import contextlib
import gc
import importlib.util
import pickle
import random
import struct
import weakref

import numpy

import fsdp
import fsdp._asyncio
from conftest import PATIENCE

if importlib.util.find_spec("torch"):
    import torch
else:
    torch = None

SIZES = (8, 9, 64, 1000, 1025, 4096, 70000, (1 << 20) + 8)
BLOCK = random.Random(0).randbytes(SIZES[-1] + 4096)
CAPACITY = 1 << 17  # of channels, in bytes
NEVER = "s/never"

# What a call may raise because of what other processes and threads do.
EXPECTED = (
    fsdp.NotFound,
    fsdp.Timeout,
    fsdp.Gone,
    fsdp.Exists,
    fsdp.Ended,
    fsdp.Left,
    fsdp.Invalid,  # another thread, or a signal handler, has closed the client
)


is_child = False


class Alarm(Exception):
    pass


def pattern(tag, size):
    """Returns the bytes that belong to a tag, with which they begin."""
    at = tag % 4096
    return struct.pack("<Q", tag) + BLOCK[at : at + size - 8]


def check_pattern(data):
    """Checks bytes that another process has written. Returns their tag."""
    (tag,) = struct.unpack_from("<Q", data)
    assert data == pattern(tag, len(data)), f"{len(data)} wrong bytes of {tag}"
    return tag


class Kept:
    """Something that shows memory, and the bytes that it must show."""

    def __init__(self, thing, expected, read=bytes):
        self.thing, self.expected, self.read = thing, expected, read

    def check(self):
        if is_child:
            return  # Memory that the parent wrote is not mapped here.
        data = self.read(self.thing)
        assert data == self.expected, (
            f"{type(self.thing)} of {len(data)} bytes shows "
            f"{data[:16].hex()} instead of {self.expected[:16].hex()}"
        )


class Cycle:
    """Is freed by the collector only, and uses what it keeps then."""

    def __init__(self, *things):
        self.me, self.things = self, things

    def __del__(self):
        for thing in self.things:
            if isinstance(thing, Kept):
                thing.check()
            elif isinstance(thing, fsdp.Tensor):
                with contextlib.suppress(fsdp.Error):
                    thing.hold()
                    thing.release()
            else:
                with contextlib.suppress(fsdp.Error, RuntimeError, ImportError):
                    thing.names()


class Storm:
    """The random steps of one thread. Threads share `clients`."""

    def __init__(self, kind, seed, name, clients):
        self.kind, self.rng, self.name = kind, random.Random(seed), name
        self.clients = clients
        # A broker that is killed comes back.
        self.patience = 0.2 if kind == "stop" else PATIENCE
        self.kept, self.tensors, self.others = [], [], []
        self.versions = {}  # of names that only this thread publishes
        self.channels = {}  # by name: producer, consumer
        self.n_channels, self.is_looping = 0, False
        self.expected = EXPECTED
        if kind != "calm":
            self.expected += (fsdp.Error, OSError, MemoryError)
        weights = dict(self.WEIGHTS)
        if kind == "limits":
            weights["loop"] = 0  # The constructors of loops do not stand limits.
        self.steps = [getattr(self, step) for step, n in weights.items() for _ in range(n)]

    # --- helpers --------------------------------------------------------------

    def client(self):
        while True:
            try:
                return self.rng.choice(self.clients)
            except IndexError:
                self.clients.append(fsdp.connect(reconnect=self.patience))

    def tag(self):
        return self.rng.getrandbits(62)

    def pick(self, things):
        return self.rng.choice(things) if things else None

    def take(self, things):
        return things.pop(self.rng.randrange(len(things))) if things else None

    def name_of(self):
        own = self.rng.random() < 0.5
        return f"{self.name if own else 's'}/{self.rng.randrange(3)}"

    def keep(self, thing, data, read=bytes):
        self.kept.append(Kept(thing, data, read))
        while len(self.kept) > 40:
            self.take(self.kept)

    def keep_tensor(self, tensor, data):
        self.tensors.append((tensor, data))
        while len(self.tensors) > 20:
            self.take(self.tensors)

    def run(self, n):
        for _ in range(n):
            self.step()

    def step(self):
        step = self.rng.choice(self.steps)
        try:
            step()
        except self.expected as error:
            error.__traceback__ = None
        kept = self.pick(self.kept)
        if kept:
            kept.check()

    def check_all(self):
        for kept in self.kept:
            kept.check()

    def drop_all(self):
        self.rng.shuffle(self.kept)
        self.kept.clear()
        self.tensors.clear()
        self.others.clear()
        self.channels.clear()

    # --- steps: connections ---------------------------------------------------

    def connect(self):
        if len(self.clients) < 4:
            self.clients.append(fsdp.connect(reconnect=self.patience))

    def close(self):
        try:
            client = self.take(self.clients)
        except IndexError:  # Another thread was faster.
            return
        if client is None:
            return
        if self.rng.random() < 0.7:
            client.close()
        elif self.rng.random() < 0.5:
            self.others.append(Cycle(client))

    # --- steps: tensors -------------------------------------------------------

    def put(self):
        name, tag = self.name_of(), self.tag()
        data = pattern(tag, self.rng.choice(SIZES))
        known = self.versions.pop(name, None)
        tensor = self.client().put(name, data, evictable=False)
        if not name.startswith("s/"):
            assert known is None or tensor.version == known[0] + 1
            self.versions[name] = tensor.version, data
        self.keep_tensor(tensor, data)

    def alloc(self):
        size, tag = self.rng.choice(SIZES), self.tag()
        data = pattern(tag, size)
        tensor = self.client().alloc(size, "u8")
        array = tensor.numpy()
        array[:] = numpy.frombuffer(data, "u1")
        end = self.rng.random()
        if end < 0.4:
            self.keep(array, data, numpy.ndarray.tobytes)
        elif end < 0.8:
            del array
            tensor.publish()
            self.keep_tensor(tensor, data)

    def get(self):
        name = self.name_of()
        known = self.versions.get(name)
        tensor = self.client().get(name, timeout=self.rng.choice([0, 0, 0.01]))
        data = bytes(memoryview(tensor))
        check_pattern(data)
        if known:
            assert known == (tensor.version, data)
        self.keep_tensor(tensor, data)

    def get_many(self):
        names = [self.name_of() for _ in range(self.rng.randrange(1, 4))]
        for tensor in self.client().get(set(names)):
            data = bytes(memoryview(tensor))
            check_pattern(data)
            self.keep_tensor(tensor, data)

    def miss(self):
        name = self.rng.choice([NEVER, self.name + "/never"])
        assert name not in self.client()
        self.client().get(name, timeout=self.rng.choice([0, 0.003]))
        raise AssertionError(f"{name} was got")

    def begin(self):
        pending = self.client()._begin([self.rng.choice([self.name_of(), NEVER])])
        end = self.rng.random()
        if end < 0.3:
            pending.cancel()
        elif end < 0.6:
            for tensor in pending.end() or []:
                check_pattern(bytes(memoryview(tensor)))
        elif end < 0.8:
            self.others.append(pending)

    def remove(self):
        name = self.name_of()
        self.versions.pop(name, None)
        self.client().remove(name)

    def show(self):
        """Makes something that shows a tensor's memory."""
        if not self.tensors:
            return
        tensor, data = self.pick(self.tensors)
        how = self.rng.randrange(9)
        if how == 0:
            self.keep(tensor, data, lambda tensor: bytes(memoryview(tensor)))
        elif how == 1:
            self.keep(memoryview(tensor), data)
        elif how == 2:
            self.keep(tensor.numpy(), data, numpy.ndarray.tobytes)
        elif how == 3:
            self.keep(numpy.from_dlpack(tensor), data, numpy.ndarray.tobytes)
        elif how == 4:
            array = tensor.numpy(private=True)
            array[-1] ^= 255
            self.keep(array, array.tobytes(), numpy.ndarray.tobytes)
        elif how == 5:
            a, b = sorted(self.rng.choices(range(len(data) + 1), k=2))
            piece = self.rng.choice([memoryview(tensor), tensor.numpy()])[a:b]
            self.keep(piece, data[a:b], lambda piece: bytes(piece))
        elif how == 6:
            at = self.rng.randrange(len(data))
            view = tensor.view((len(data) - at,), "u8", offset=at)
            self.keep_tensor(view, data[at:])
        elif how == 7:
            self.others.append(tensor.__dlpack__(max_version=self.rng.choice([None, (1, 0)])))
        elif torch:
            shown = tensor.torch(private=self.rng.random() < 0.5)
            self.keep(shown, data, lambda shown: shown.numpy().tobytes())

    def hold(self):
        if self.tensors:
            tensor, data = self.pick(self.tensors)
            assert bytes(memoryview(tensor)) == data
            with tensor.view((len(data),), "u8") as view:
                view.hold()
            assert not view.held

    def ticket(self):
        if self.tensors:
            tensor, data = self.pick(self.tensors)
            ticket = tensor.ticket(ttl=2)
            if self.rng.random() < 0.7:
                again = self.client().redeem(ticket)
                assert bytes(memoryview(again)) == data
                self.keep_tensor(again, data)

    def pickle(self):
        """Pickles a tensor that travels by its name."""
        tensor, data = self.pick(self.tensors) or (None, None)
        if tensor and tensor.name:
            again = pickle.loads(pickle.dumps(tensor))
            assert bytes(memoryview(again)) == data

    def drop(self):
        for _ in range(self.rng.randrange(1, 6)):
            self.take(self.rng.choice([self.kept, self.tensors, self.others]))
        if self.rng.random() < 0.1:
            gc.collect()

    def cycle(self):
        things = [self.client(), self.take(self.kept)]
        if self.tensors:
            things.append(self.take(self.tensors)[0])
        cycle = Cycle(*(thing for thing in things if thing is not None))
        if self.rng.random() < 0.5:
            self.others.append(cycle)

    def watch(self):
        """Drops something when something else ends."""
        kept, other = self.take(self.kept), self.take(self.kept)
        if kept and other:
            weakref.finalize(kept, other.check)
            self.others.append(kept)

    def inspect(self):
        client = self.client()
        client.names()
        client.status()
        client.who(self.name_of())

    # --- steps: bundles -------------------------------------------------------

    def stage(self):
        own = self.rng.random() < 0.5
        name = f"{self.name if own else 's'}/b/"
        tag = self.tag()
        stage = self.client().stage(name, replace=True, keep=self.rng.choice([1, 2, 3]))
        for i in range(self.rng.randrange(1, 4)):
            data = pattern(tag + i, self.rng.choice(SIZES))
            tensor = stage.put(str(i), data)
            if self.rng.random() < 0.2:
                self.keep(tensor.numpy(), data, numpy.ndarray.tobytes)
        end = self.rng.random()
        if end < 0.7:
            stage.metadata["tag"] = str(tag)
            stage.commit()
        elif end < 0.8:
            stage.abort()
        elif end < 0.9:
            self.others.append(stage)

    def bundle(self):
        name = f"{self.rng.choice([self.name, 's'])}/b/"
        bundle = self.client().bundle(name)
        if bundle.version > 1 and self.rng.random() < 0.3:
            old = bundle.version - 1
            bundle = self.client().bundle(name, version=old)
            assert bundle.version == old
        tag = int(bundle.metadata["tag"])
        for member, tensor in bundle.items():
            data = bytes(memoryview(tensor))
            assert check_pattern(data) == tag + int(member)
            self.keep_tensor(tensor, data)
            if self.rng.random() < 0.3:
                self.keep(tensor.numpy(), data, numpy.ndarray.tobytes)
            if self.rng.random() < 0.3:
                array = tensor.numpy(private=True)
                array[self.rng.randrange(len(data))] ^= 255
                self.keep(array, array.tobytes(), numpy.ndarray.tobytes)
        bundle.stale  # noqa: B018
        if self.rng.random() < 0.2:
            self.others.append(bundle)

    # --- steps: channels ------------------------------------------------------

    def open(self):
        if len(self.channels) == 3:
            return
        name, mode = f"{self.name}/c{self.n_channels}", self.rng.choice(["queue", "broadcast"])
        self.n_channels += 1
        client, credits = self.client(), self.rng.randrange(1, 5)
        options = {"capacity": CAPACITY, "mode": mode, "credits": credits, "timeout": 5}
        self.channels[name] = [
            client.channel(name, role, **options) for role in ("producer", "consumer")
        ]

    def ends(self):
        return self.pick(list(self.channels.values())) or [None, None]

    def item(self):
        data = pattern(self.tag(), self.rng.choice(SIZES[:-1]))
        return data[:8], numpy.frombuffer(data, "u1")

    def send(self):
        producer, _ = self.ends()
        if producer:
            producer.put(self.item(), timeout=0)

    def send_slab(self):
        producer, _ = self.ends()
        if producer:
            data = pattern(self.tag(), self.rng.choice(SIZES[:-1]))
            slab = producer.alloc([(len(data), "u8")], timeout=0)
            slab[0][:] = numpy.frombuffer(data, "u1")
            end = self.rng.random()
            if end < 0.7:
                slab.send(data[:8])
            elif end < 0.9:
                self.keep(slab, data, lambda slab: slab[0].tobytes())

    def receive(self):
        _, consumer = self.ends()
        if consumer:
            self.accept(consumer.get(timeout=self.rng.choice([0, 0.003])))

    def accept(self, got):
        head, array = got
        if isinstance(head, list):
            head, array = array, head[0]
        data = array.tobytes()
        check_pattern(data)
        assert data[:8] == head
        if array.flags.writeable and self.rng.random() < 0.3:
            array[-1] ^= 255
            data = array.tobytes()
        if self.rng.random() < 0.7:
            self.keep(array, data, numpy.ndarray.tobytes)

    def hang_up(self):
        """Closes one end, or drops both."""
        name = self.pick(list(self.channels))
        if name is None:
            return
        ends = self.channels.pop(name)
        self.rng.shuffle(ends)
        for end in ends[: self.rng.randrange(3)]:
            end.close()

    def resize(self):
        producer, _ = self.ends()
        if producer:
            producer.resize(self.rng.randrange(1, 6), timeout=1)
            producer.info()

    # --- steps: asyncio -------------------------------------------------------

    def loop(self, tasks=None):
        self.is_looping = True
        try:
            asyncio.run(tasks or self.tasks())
        finally:
            self.is_looping = False

    async def tasks(self):
        client, (producer, consumer) = self.client(), self.ends()
        work = [
            client.aget(self.name_of()),
            client.aget(NEVER, timeout=0.01),
            client.abundle("s/b/"),
            asyncio.wait_for(client.aget(NEVER, timeout=None), 0.01),
        ]
        if producer:
            work.append(producer.aput(self.item(), timeout=0.01))
            work.append(asyncio.wait_for(consumer.aget(), 0.01))
        self.rng.shuffle(work)
        tasks = [asyncio.ensure_future(each) for each in work]
        if self.rng.random() < 0.2:
            self.rng.choice(tasks).cancel()
        if self.rng.random() < 0.1:
            await asyncio.sleep(0)
            client.close()
        allowed = (*self.expected, fsdp.Invalid, asyncio.CancelledError, TimeoutError)
        for got in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(got, BaseException):
                if not isinstance(got, allowed):
                    raise got
                got.__traceback__ = None
            elif isinstance(got, fsdp.Tensor):
                check_pattern(bytes(memoryview(got)))
            elif isinstance(got, tuple):
                self.accept(got)

    WEIGHTS = {
        "connect": 2,
        "close": 1,
        "put": 6,
        "alloc": 3,
        "get": 6,
        "get_many": 2,
        "miss": 1,
        "begin": 3,
        "remove": 1,
        "show": 14,
        "hold": 2,
        "ticket": 3,
        "pickle": 2,
        "drop": 8,
        "cycle": 2,
        "watch": 2,
        "inspect": 1,
        "stage": 3,
        "bundle": 4,
        "open": 3,
        "send": 5,
        "send_slab": 4,
        "receive": 6,
        "hang_up": 2,
        "resize": 1,
        "loop": 1,
    }
