"""Ctrl-C ends each call that waits; what it leaves is whole."""

import signal

import pytest

from conftest import PATIENCE, run, sleeps, start, until

WAITS = {
    "get": "c.get('a/never', timeout=None)",
    "get_list": "c.get(['a/never', 'a/other'], timeout=60)",
    "alloc": "small.alloc(600_000, 'u8')",
    "put": "small.put('a/x', bytes(600_000))",
    "channel": "c.channel('a/none', timeout=None)",
    "channel_get": "c.channel('a/ch', capacity=4096).get()",
    "channel_put": "[p.put(0) for p in [c.channel('a/p', 'producer', capacity=4096)] * 9]",
    "join": "c._join('a/comm', 2, 0, None)",
    "aget": "asyncio.run(c.aget('a/never', timeout=None))",
    "abundle": "asyncio.run(c.abundle('a/never/', timeout=None))",
}


@pytest.mark.parametrize("what", WAITS)
def test_ctrl_c_ends_the_wait(broker, what):
    process = start(
        broker,
        f"""
        import asyncio, fsdp, sys
        c = fsdp.connect()
        small = fsdp.connect(budget=1_000_000)
        full = small.alloc(600_000, "u8")
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
    assert process.stdout.readline() == "ready\n"
    # Until it sleeps in the call, which it must leave by the signal alone.
    until(lambda: sleeps(process.pid), "the call waits")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=3 * PATIENCE)
    assert (out, err, process.returncode) == ("interrupted\nwhole\n", "", 0)


def test_ctrl_c_ends_the_wait_for_a_broker_that_is_away(supervised):
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


def test_a_handler_that_does_not_raise_lets_the_call_go_on(broker):
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


def test_a_handler_that_calls_fsdp_is_told(broker):
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
