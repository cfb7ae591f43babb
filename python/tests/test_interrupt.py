"""Tests that Ctrl-C ends each call that waits, and leaves everything in a valid
state.
"""

import os
import signal
import textwrap

import numpy
import pytest

from conftest import PATIENCE, Broker, run, sleeps, start, until
from fsdp.safetensors import save_file

WAITS = {
    "get": "c.get('a/never', timeout=None)",
    "get_list": "c.get(['a/never', 'a/other'], timeout=60)",
    "alloc": "small.alloc(600_000, 'u8')",
    "put": "small.put('a/x', bytes(600_000))",
    "channel": "c.channel('a/none', timeout=None)",
    "channel_get": "c.channel('a/ch', capacity=4096).get()",
    "channel_put": "[p.put(0) for p in [c.channel('a/p', 'producer', capacity=4096)] * 9]",
    "channel_loop": "list(c.channel('a/loop', capacity=4096))",
    "channel_slab": "[p.alloc([(1, 'u8')]) for p in [c.channel('a/s', 'producer', capacity=4096)] * 9]",
    "channel_resize": "c.alloc(60 << 20, 'u8'), c.channel('a/r', capacity=4 << 20, credits=1).resize(20)",
    "broadcast": "c.channel('a/b', mode='broadcast', capacity=4096).get()",
    "bundle": "c.bundle('a/never/', timeout=None)",
    "stage": "c.stage('a/once/', once=True, timeout=None)",
    "load_once": "fsdp.load_once(model, 'a/once/', client=c)",
    "join": "c._join('a/comm', 2, 0, None)",
    "aget": "asyncio.run(c.aget('a/never', timeout=None))",
    "abundle": "asyncio.run(c.abundle('a/never/', timeout=None))",
    "channel_aget": "asyncio.run(c.channel('a/ag', capacity=4096).aget())",
    "channel_aput": "asyncio.run(fill(c.channel('a/ap', 'producer', capacity=4096)))",
    "channel_aloop": "asyncio.run(drain(c.channel('a/al', capacity=4096)))",
}


@pytest.fixture(scope="module")
def broker():
    """A broker whose memory can be used up."""
    broker = Broker("--set", "memory_max=128M")
    yield broker
    broker.stop()


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A file that another process is about to load."""
    path = tmp_path_factory.mktemp("model") / "model.safetensors"
    save_file({"x": numpy.zeros(4)}, path)
    return path


def expect_after_signal(process, number, expected):
    """Send a signal when the process sleeps in its call, and expect its output
    after "ready". Only the signal may end the call."""
    assert process.stdout.readline() == "ready\n"
    until(lambda: sleeps(process.pid), "the call waits")
    process.send_signal(number)
    out, err = process.communicate(timeout=3 * PATIENCE)
    assert (out, err, process.returncode) == (expected, "", 0)


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_the_wait(broker, model, what):
    process = start(
        broker,
        f"""
        import asyncio, fsdp, numpy, sys
        c = fsdp.connect()
        small = fsdp.connect(budget=1_000_000)
        full = small.alloc(600_000, "u8")
        model = "{model}"
        other = fsdp.connect().stage("a/once/", once=True)
        async def fill(channel):
            while True:
                await channel.aput(0)
        async def drain(channel):
            async for _ in channel:
                pass
        print("ready", flush=True)
        try:
            {WAITS[what]}
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        c.ping()
        small.ping()
        del full
        small.alloc(600_000, "u8", timeout=20)
        print("whole", flush=True)
        """,
    )
    expect_after_signal(process, signal.SIGINT, "interrupted\nwhole\n")


UNANSWERED = """\
    fsdp.connect()
    fsdp.default()
    c.ping()
    c.get("a/none")
    "a/none" in c
    c.alloc(10, "u8")
    c.put("a/y", b"y")
    tensor.publish("a/t")
    published.ticket()
    c.redeem(ticket)
    c.remove("a/x")
    c.names()
    c.status()
    c.who("a/x")
    c.bundle("a/none/")
    large.numpy(private=True)
    c.stage("a/s/")
    stages[0].alloc("x", 1, "u8")
    stages[1].commit()
    stages[2].abort()
    c.channel("a/opened", capacity=4096)
    producers[0].resize(4)
    producers[0].end()
    producers[1].close()
    consumer.close()
    asyncio.run(c.aget("a/none", timeout=None))
    asyncio.run(c.abundle("a/none/", timeout=None))
    c._join("a/new", 1, 0, 20)
    comm.leave()
    others[0].close()
    drop(others)
"""


def test_a_reply_during_the_handler_is_lost_but_not_its_hold(broker):
    """The broker replies to the get before it replies to the put."""
    process = start(
        broker,
        """
        import fsdp, signal, threading
        c, other = fsdp.connect(), fsdp.connect()
        ready, done = threading.Event(), threading.Event()
        def put():
            ready.wait()
            other.put("a/meanwhile", b"x")
            done.set()
        def interrupt(*_):
            ready.set()
            done.wait()
            raise KeyboardInterrupt
        threading.Thread(target=put).start()
        signal.signal(signal.SIGINT, interrupt)
        print("ready", flush=True)
        try:
            c.get("a/meanwhile", timeout=60)
            while True:
                pass
        except KeyboardInterrupt:
            c.names()  # reads the late reply, and returns its hold
            print(len(other.who("a/meanwhile")), "holders", flush=True)
        """,
    )
    expect_after_signal(process, signal.SIGINT, "0 holders\n")


def test_an_item_whose_buffer_is_not_known_keeps_no_other_thread_waiting(broker):
    process = start(
        broker,
        """
        import faulthandler, fsdp, sys, threading, time
        faulthandler.dump_traceback_later(60, exit=True)
        c = fsdp.connect()
        producer = c.channel("a/slow", "producer", capacity=4096)
        consumer = c.channel("a/slow")
        producer.put(7)
        print("ready", flush=True)
        sys.stdin.readline()
        got = []
        thread = threading.Thread(target=lambda: got.append(consumer.get(timeout=60)))
        thread.start()
        for _ in range(20):  # The other thread has its turn meanwhile.
            time.sleep(0.005)
        print("runs", flush=True)
        sys.stdin.readline()
        thread.join()
        print(got, flush=True)
        """,
    )
    assert process.stdout.readline() == "ready\n"
    os.kill(broker.pid(), signal.SIGSTOP)
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "runs\n"
    finally:
        os.kill(broker.pid(), signal.SIGCONT)
    out, err = process.communicate("go\n", timeout=PATIENCE)
    assert (out, err, process.returncode) == ("[7]\n", "", 0)


def test_ctrl_c_ends_calls_to_which_a_broker_does_not_reply(broker):
    calls = textwrap.dedent(UNANSWERED).splitlines()
    process = start(
        broker,
        """
        import asyncio, contextlib, fsdp, sys
        c = fsdp.connect()
        others = [fsdp.connect(), fsdp.connect()]
        tensor, published = c.alloc(10, "u8"), c.put("a/x", b"x")
        ticket = published.ticket()
        with c.stage("a/large/") as stage:
            stage.alloc("w", 1 << 20, "u8")
        large = c.bundle("a/large/")["w"]
        stages = [c.stage(f"a/{i}/") for i in range(3)]
        for stage in stages[1:]:
            stage.alloc("x", 1, "u8")
        producers = [c.channel(f"a/p{i}", "producer", capacity=4096) for i in range(2)]
        consumer = c.channel("a/p0")
        comm = c._join("a/comm", 1, 0, 20)
        def drop(things):
            del things[-1]
            while things:  # The interpreter looks for signals here.
                pass
        for call in sys.argv[1:]:
            print("next", flush=True)
            sys.stdin.readline()
            print("calls", flush=True)
            try:
                # An interrupted eval() of a string would change the exit status.
                eval(compile(call, "call", "eval"))
            except KeyboardInterrupt:
                continue
            print(call, "was answered", flush=True)
        print("done", flush=True)
        sys.stdin.readline()
        # What was to end has ended.
        assert c.bundle("a/large/")["w"].held
        c.stage("a/2/", replace=True).abort()
        with contextlib.suppress(fsdp.Ended):
            c.channel("a/p0").get(timeout=20)
        again = [c.channel(name, capacity=8192) for name in ("a/p1", "a/opened")]
        c._join("a/comm", 1, 0, 20).leave()
        print("whole", flush=True)
        """,
        arguments=calls,
    )
    assert process.stdout.readline() == "next\n"
    os.kill(broker.pid(), signal.SIGSTOP)
    try:
        for call in calls:
            process.stdin.write("go\n")
            process.stdin.flush()
            assert process.stdout.readline() == "calls\n"
            until(lambda: sleeps(process.pid), f"{call} waits")
            process.send_signal(signal.SIGINT)
            assert process.stdout.readline() in ("next\n", "done\n"), call
    finally:
        os.kill(broker.pid(), signal.SIGCONT)
    out, err = process.communicate("go\n", timeout=3 * PATIENCE)
    assert (out, err, process.returncode) == ("whole\n", "", 0)


def test_ctrl_c_ends_the_wait_for_an_unavailable_broker(supervised):
    process = start(
        supervised,
        """
        import contextlib, fsdp, sys
        c = fsdp.connect()
        print("ready", flush=True)
        sys.stdin.readline()
        print("waits", flush=True)
        try:
            while True:
                with contextlib.suppress(fsdp.Disconnected):
                    c.names()
        except KeyboardInterrupt:
            print("interrupted", flush=True)
        """,
    )
    assert process.stdout.readline() == "ready\n"
    supervised.process.send_signal(signal.SIGTERM)
    supervised.process.wait(PATIENCE)
    process.stdin.write("go\n")
    process.stdin.flush()
    assert process.stdout.readline() == "waits\n"
    until(lambda: sleeps(process.pid), "the call waits")
    process.send_signal(signal.SIGINT)
    assert process.stdout.readline() == "interrupted\n"
    process.kill()
    process.communicate()


def test_a_call_continues_after_a_handler_that_does_not_raise(broker):
    status, out, err = run(
        broker,
        """
        import fsdp, signal, threading
        c, other = fsdp.connect(), fsdp.connect()
        calls = []
        def handler(*_):
            calls.append(1)
            threading.Thread(target=other.put, args=("a/late", b"x")).start()
        signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        print(c.get("a/late", timeout=30).version, len(calls))
        """,
    )
    assert (status, out, err) == (0, "1 1\n", "")


def test_a_handler_that_calls_fsdp_gets_an_error(broker):
    status, out, err = run(
        broker,
        """
        import fsdp, signal
        c = fsdp.connect()
        signal.signal(signal.SIGALRM, lambda *_: c.ping())
        # Again and again: the first may come before the call.
        signal.setitimer(signal.ITIMER_REAL, 0.05, 0.05)
        try:
            c.get("a/never", timeout=None)
        except RuntimeError as error:
            signal.setitimer(signal.ITIMER_REAL, 0)
            print(error)
        c.ping()
        """,
    )
    assert (status, err) == (0, "")
    assert "signal handler called fsdp" in out


@pytest.mark.parametrize(
    "make, await_end",
    [
        ("c.stage('a/dropped/', once=True)", "o.stage('a/dropped/', once=True, timeout=60)"),
        ("producer()", "list(consumer)"),
        ("producer(), used()", "list(consumer)"),
        ("c._join('a/dropped', 1, 0, 20)", "join()"),
    ],
    ids=["stage", "channel", "channel_in_use", "comm"],
)
def test_a_handler_may_drop_what_belongs_to_the_connection(broker, make, await_end):
    process = start(
        broker,
        f"""
        import contextlib, faulthandler, fsdp, numpy, signal, threading
        faulthandler.dump_traceback_later(60, exit=True)
        c, o = fsdp.connect(), fsdp.connect()
        def producer():
            global consumer
            port = c.channel("a/dropped", "producer", capacity=4096)
            consumer = o.channel("a/dropped")
            return port
        def used():
            global array
            c.channel("a/dropped", "producer").put(numpy.zeros(300))
            channel = c.channel("a/dropped")
            array = channel.get(timeout=60)
            return channel
        def join():
            while True:
                with contextlib.suppress(fsdp.Exists):  # It has not left yet.
                    return o._join("a/dropped", 1, 0, 20)
        things = [{make}]
        def follow():
            {await_end}
            o.put("a/late", b"")
        def handler(*_):
            if things:
                things.clear()
                threading.Thread(target=follow).start()
        signal.signal(signal.SIGUSR1, handler)
        version = o.put("a/late", b"").version
        print("ready", flush=True)
        c.get("a/late", timeout=60, newer_than=version)
        print("whole", flush=True)
        """,
    )
    expect_after_signal(process, signal.SIGUSR1, "whole\n")


def expect_refused_in_handler(broker, call, calls_of_handler, said):
    """Interrupts a call to which the broker does not reply by a handler that
    makes other calls, and expects their errors."""
    process = start(
        broker,
        f"""
        import contextlib, faulthandler, fsdp, signal, sys
        faulthandler.dump_traceback_later(60, exit=True)
        c = fsdp.connect()
        stage = c.stage("a/handler/")
        def handler(*_):
            for refused in {calls_of_handler}:
                try:
                    eval(refused)
                except (RuntimeError, fsdp.Error) as error:
                    print(type(error).__name__, flush=True)
            print("handled", flush=True)
        signal.signal(signal.SIGUSR1, handler)
        print("ready", flush=True)
        sys.stdin.readline()
        print("calls", flush=True)
        {call}
        stage.abort()
        print("whole", flush=True)
        """,
    )
    assert process.stdout.readline() == "ready\n"
    os.kill(broker.pid(), signal.SIGSTOP)
    try:
        process.stdin.write("go\n")
        process.stdin.flush()
        assert process.stdout.readline() == "calls\n"
        until(lambda: sleeps(process.pid), "the call waits")
        process.send_signal(signal.SIGUSR1)
        for line in (*said, "handled"):
            assert process.stdout.readline() == f"{line}\n"
    finally:
        os.kill(broker.pid(), signal.SIGCONT)
    out, err = process.communicate(timeout=3 * PATIENCE)
    assert (out, err, process.returncode) == ("whole\n", "", 0)


def test_a_handler_may_call_default_while_it_connects(broker):
    expect_refused_in_handler(
        broker, "fsdp.default()", ["fsdp.default()"], ["RuntimeError"]
    )


def test_a_handler_may_call_the_stage_that_it_interrupted(broker):
    calls = ["stage.alloc('y', 1, 'u8')", "stage.commit()", "stage.abort()"]
    expect_refused_in_handler(
        broker,
        "stage.alloc('x', 1, 'u8')",
        calls,
        ["RuntimeError", "RuntimeError", "Error"],
    )
