"""A process of test_storm.py.

Arguments: the kind of storm, the seed, and the number of steps.
"""

import asyncio
import contextlib
import faulthandler
import gc
import logging
import multiprocessing
import os
import random
import resource
import signal
import sys
import threading
import traceback
import warnings

import fsdp
import storm
from conftest import PATIENCE, until
from storm import NEVER, Alarm, Storm, check_pattern


class Main(Storm):
    """The steps of the main thread, which also does what only it can do."""

    WEIGHTS = {**Storm.WEIGHTS, "wait": 3, "strike": 3, "fork": 1, "starve": 0}

    def __init__(self, *args):
        if args[0] == "limits":
            self.WEIGHTS = {**self.WEIGHTS, "starve": 6}
        super().__init__(*args)
        self.expected += (Alarm,)  # A handler may run a little later.
        signal.signal(signal.SIGALRM, self.on_alarm)

    # --- signals --------------------------------------------------------------

    def on_alarm(self, *_):
        what = self.rng.randrange(5)
        if what == 0:
            self.drop()
        elif what == 1:
            gc.collect()
        elif what == 2:
            with contextlib.suppress(fsdp.Error, RuntimeError):
                self.client().names()
        elif what == 3:
            self.check_all()
        # The constructors and destructors of asyncio's loops do not stand that.
        if not self.is_looping and self.rng.random() < 0.7:
            raise Alarm

    @contextlib.contextmanager
    def alarm(self, seconds):
        try:
            signal.setitimer(signal.ITIMER_REAL, seconds)
            try:
                yield
            finally:
                signal.setitimer(signal.ITIMER_REAL, 0)
        except Alarm as error:
            error.__traceback__ = None

    def wait(self):
        """Does what waits, until a signal comes."""
        client, (producer, consumer) = self.client(), self.ends()
        calls = [
            lambda: client.get(NEVER, timeout=0.05),
            lambda: client.bundle("s/never/", timeout=0.05),
            lambda: client.channel("s/none", timeout=0.05),
            lambda: self.loop(client.aget(NEVER, timeout=0.05)),
        ]
        if producer:
            item = self.item()
            calls.append(lambda: [producer.put(item, timeout=0.05) for _ in range(9)])
            calls.append(lambda: consumer.get(timeout=0.05))
            calls.append(lambda: self.loop(consumer.aget(timeout=0.05)))
        call = self.rng.choice(calls)
        with self.alarm(self.rng.uniform(0.001, 0.06)):
            call()

    def strike(self):
        """Interrupts a step anywhere."""
        steps = [self.put, self.get, self.stage, self.bundle, self.send, self.ticket, self.open]
        steps += [self.loop, self.connect, self.drop, self.receive, self.show, self.inspect]
        step = self.rng.choice(steps)
        try:
            with self.alarm(self.rng.uniform(0.0002, 0.01)):
                step()
        finally:
            self.versions.clear()

    # --- other processes ------------------------------------------------------

    def fork(self):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(2 * PATIENCE)
            self.be_child()
        assert os.waitpid(pid, 0)[1] == 0, "the child failed"
        self.check_all()

    def be_child(self):
        storm.is_child = True
        self.name = f"c{os.getpid()}"
        try:
            for _ in range(self.rng.randrange(10)):
                self.use_inherited()
            if self.rng.random() < 0.3:
                self.drop_all()
            if self.rng.random() < 0.3:
                self.clients.clear()
            with contextlib.suppress(*self.expected):
                mine = self.rng.choice([fsdp.connect, fsdp.default])()
                check_pattern(bytes(memoryview(mine["s/0"])))
            if self.rng.random() < 0.3:
                gc.collect()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        if self.rng.random() < 0.5:
            os._exit(0)
        raise SystemExit

    def use_inherited(self):
        tensor = self.pick(self.tensors)
        _, consumer = self.ends()
        calls = [
            lambda: self.client().get(self.name_of()),
            lambda: self.client().ping(),
            lambda: tensor and memoryview(tensor[0]),
            lambda: tensor and tensor[0].hold(),
            lambda: tensor and tensor[0].ticket(),
            lambda: tensor and tensor[0].numpy(private=True),
            lambda: consumer and consumer.get(timeout=0),
            lambda: consumer and consumer.close(),
            lambda: self.client().close(),
            self.drop,
            self.hang_up,
            self.put,
            self.stage,
        ]
        with contextlib.suppress(fsdp.Error):
            self.rng.choice(calls)()

    # --- limits ---------------------------------------------------------------

    def starve(self):
        """Does some steps with few descriptors, or with little memory."""
        # AddressSanitizer ends a process that has no memory.
        if self.rng.random() < 0.5 or "ASAN_OPTIONS" in os.environ:
            what, now = resource.RLIMIT_NOFILE, len(os.listdir("/proc/self/fd"))
            limit = now + self.rng.randrange(4)
        else:
            what = resource.RLIMIT_AS
            with open("/proc/self/statm") as file:
                now = int(file.read().split()[0]) * resource.getpagesize()
            limit = now + self.rng.choice([0, 1 << 16, 1 << 20, 1 << 23])
        _, most = old = resource.getrlimit(what)
        left_out = self.starve, self.fork, self.wait, self.strike
        steps = [step for step in self.steps if step not in left_out]
        self.versions.clear()
        resource.setrlimit(what, (limit, most))
        try:
            for _ in range(5):
                with contextlib.suppress(fsdp.Error, OSError, MemoryError):
                    self.rng.choice(steps)()
        finally:
            resource.setrlimit(what, old)
            self.versions.clear()


def report(unraisable):
    """Reports what a destructor raised, unless a signal raised it."""
    if not isinstance(unraisable.exc_value, Alarm):
        sys.__unraisablehook__(unraisable)


def be_quiet():
    """Hides what asyncio says of a machine under load, and of loops that a
    signal has interrupted."""
    sys.unraisablehook = report
    logging.getLogger("asyncio").setLevel(logging.CRITICAL)
    warnings.simplefilter("ignore", ResourceWarning)
    warnings.filterwarnings("ignore", "coroutine .* was never awaited")


def mapped():
    """Returns the lines of the memory that is the broker's."""
    with open("/proc/self/maps") as maps:
        return [line for line in maps if "fsdp" in line and "memfd" in line]


def descriptors():
    names = (f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd"))
    links = [os.readlink(name) for name in names if os.path.lexists(name)]
    return [link for link in links if not link.startswith("pipe:")]


def work(mine, over):
    try:
        while not over.is_set():
            mine.run(10)
            mine.check_all()
    except BaseException:
        traceback.print_exc()
        os._exit(3)


def other_main(pipe):
    """A spawned process: it gets tensors, and sends them back."""
    while True:
        tensor = pipe.recv()
        if tensor is None:
            return
        pipe.send((tensor, bytes(memoryview(tensor))))


def spawn(tensors):
    """Sends tensors to a spawned process and back."""
    spawning = multiprocessing.get_context("spawn")
    mine, its = spawning.Pipe()
    with mine, its:
        process = spawning.Process(target=other_main, args=(its,))
        process.start()
        for tensor, data in tensors:
            if tensor.name:
                continue  # It may have been replaced.
            mine.send(tensor)
            again, seen = mine.recv()
            assert bytes(memoryview(again)) == seen == data
        mine.send(None)
        process.join()
        assert process.exitcode == 0
        process.close()


def end_cleanly(storms, clients, before):
    """Drops everything, and waits until nothing of the broker is left."""
    for each in storms:
        each.check_all()
        each.drop_all()
    for client in clients:
        client.close()
    clients.clear()
    storms.clear()
    del each
    with contextlib.suppress(fsdp.Disconnected):
        fsdp.default().close()
    gc.collect()
    try:
        until(lambda: not mapped() and len(descriptors()) <= before, "all is closed")
    except AssertionError:
        print(mapped(), descriptors())
        raise


def main(kind, seed, n):
    """Returns what the process still has when it ends."""
    faulthandler.register(signal.SIGUSR1)
    be_quiet()
    asyncio.run(asyncio.sleep(0))
    before, rng = len(descriptors()), random.Random(f"{seed} main")
    is_clean, clients, over = rng.random() < 0.5, [], threading.Event()
    storms = [Main(kind, f"{seed} 0", f"p{os.getpid()}", clients)]
    for i in range(rng.choice([0, 0, 2])):
        storms.append(Storm(kind, f"{seed} {i + 1}", f"p{os.getpid()}t{i}", clients))
    threads = [
        threading.Thread(target=work, args=(each, over), daemon=True) for each in storms[1:]
    ]
    for thread in threads:
        thread.start()
    storms[0].run(n)
    if rng.random() < 0.1 and kind == "calm":
        spawn(storms[0].tensors)
    if is_clean or rng.random() < 0.5:
        over.set()
        for thread in threads:
            thread.join()
    if is_clean:
        end_cleanly(storms, clients, before)
    return storms


if __name__ == "__main__":
    left = main(sys.argv[1], sys.argv[2], int(sys.argv[3]))
