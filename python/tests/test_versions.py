"""Tests new versions of weights while others are in use: versions that are
kept, and switches to new ones.
"""

import os
import random
import signal
import threading

import numpy as np
import pytest

import fsdp
from conftest import PATIENCE, start, until


def publish(c, value, **options):
    with c.stage("m/", replace=True, **options) as stage:
        for name in ("a", "b"):
            stage.alloc(name, 1000, "i64").numpy()[:] = value
    return stage.version


def value_of(bundle):
    (value,) = {int(x) for tensor in bundle.values() for x in set(tensor.numpy())}
    return value


def test_the_last_versions_are_kept(broker, c):
    for i in range(1, 6):
        assert publish(c, 10 * i, keep=3) == i
    with fsdp.connect(broker.path) as other:
        for i in (3, 4, 5):
            bundle = other.bundle("m/", version=i)
            assert (bundle.version, value_of(bundle)) == (i, 10 * i)
            assert bundle.stale == (i < 5)
        for i in (1, 2):
            with pytest.raises(fsdp.Gone, match="not kept any more; the newest is 5"):
                other.bundle("m/", version=i)
    # No hold keeps these versions, and names show only the newest one.
    assert c["m/a"].numpy()[0] == 50
    assert c.status()["slots_limbo"] == 0


def test_a_smaller_number_of_kept_versions_applies_from_then_on(c):
    for i in range(4):
        publish(c, i, keep=4)
    live = c.status()["bytes_live"]
    publish(c, 9)
    until(lambda: c.status()["bytes_live"] < live, "the old ones are free")
    with pytest.raises(fsdp.Gone):
        c.bundle("m/", version=4)
    assert value_of(c.bundle("m/", version=5)) == 9


def test_a_reader_can_wait_for_a_future_version(broker, c):
    publish(c, 1)
    got = []
    thread = threading.Thread(
        target=lambda: got.append(c.bundle("m/", version=3, timeout=PATIENCE))
    )
    thread.start()
    with fsdp.connect(broker.path) as writer:
        until(lambda: writer.status()["waiters"] > 0, "the reader waits")
        publish(writer, 2, keep=2)
        publish(writer, 3, keep=2)
    thread.join()
    assert got[0].version == 3 and value_of(got[0]) == 3
    with pytest.raises(fsdp.NotFound):
        c.bundle("m/", version=4)
    with pytest.raises(fsdp.Invalid, match="set only one of them"):
        c.bundle("m/", version=3, newer_than=2)
    with pytest.raises(fsdp.Invalid):
        c.stage("m/", replace=True, keep=65)


def test_both_versions_are_mapped_at_a_time(c):
    publish(c, 1, keep=2)
    publish(c, 2, keep=2)
    old, new = c.bundle("m/", version=1), c.bundle("m/")
    assert value_of(old) == 1 and value_of(new) == 2
    publish(c, 3)
    c.remove("m/")
    assert value_of(old) == 1 and value_of(new) == 2


def test_the_end_of_the_name_ends_kept_versions(c):
    before = c.status()["bytes_live"]
    for i in range(3):
        publish(c, i, keep=3)
    c.remove("m/")
    until(lambda: c.status()["bytes_live"] == before, "all memory is free")
    with pytest.raises(fsdp.NotFound):
        c.bundle("m/", version=1)
    assert publish(c, 1, keep=3) == 1
    assert publish(c, 2, keep=3, ttl=0.01) == 2
    until(lambda: c.status()["bytes_live"] == before, "it has expired")


def test_kept_versions_outlive_the_broker(supervised):
    with fsdp.connect(supervised.path) as client:
        for i in range(1, 4):
            publish(client, i, keep=2)
        supervised.kill()
        assert value_of(client.bundle("m/", version=2)) == 2
        with pytest.raises(fsdp.Gone):
            client.bundle("m/", version=1)
        assert publish(client, 4, keep=2) == 4
        assert value_of(client.bundle("m/", version=3)) == 3


def mapped():
    """Returns how many bytes of memory files this process has mapped."""
    with open("/proc/self/maps") as file:
        ranges = [line.split()[0].split("-") for line in file if "/memfd:" in line]
    return sum(int(end, 16) - int(begin, 16) for begin, end in ranges)


@pytest.mark.parametrize("size", [1 << 16, 9 << 20])
def test_unused_versions_are_unmapped(broker, c, size):
    with fsdp.connect(broker.path) as writer:
        for i in range(4):
            with writer.stage("m/", replace=True) as stage:
                stage.alloc("w", size, "u8").numpy()[:] = i
            m = c.bundle("m/")
            assert m["w"].numpy()[-1] == i
            if i == 0:
                first = mapped()

        def is_unmapped():
            writer.ping()
            c.ping()
            return mapped() <= first

        until(is_unmapped, "one version is mapped")
        assert (m["w"].numpy() == 3).all()


WRITER = """
import fsdp, itertools, numpy, sys, zlib
c = fsdp.connect()
for i in itertools.count(int(sys.argv[1])):
    weights = numpy.full(512, i)
    with c.stage("m/", replace=True, keep=2) as stage:
        stage.metadata["hash"] = str(zlib.crc32(weights))
        for tensor in stage.alloc([(f"w{j}", 512, "i64") for j in range(6)]):
            tensor.numpy()[:] = weights
    print(stage.version, flush=True)
"""

READER = """
import fsdp, sys, zlib

def check(m):
    hashes = [str(zlib.crc32(t.numpy())) for t in m.values()]
    assert hashes == 6 * [m.metadata["hash"]], f"version {m.version} is torn"

c = fsdp.connect()
last, n, goal = 0, 0, int(sys.argv[1])
while n < goal:
    m = c.bundle("m/", newer_than=last, timeout=None)
    assert m.version > last
    last, n = m.version, n + 1
    try:
        before = c.bundle("m/", version=last - 1) if last > 1 else m
    except (fsdp.Gone, fsdp.NotFound):
        before = m
    for each in m, before, m:  # the writer goes on meanwhile
        check(each)
print("whole")
"""


def test_readers_see_whole_versions_while_writers_are_killed(broker, c):
    switches = int(os.environ.get("FSDP_TEST_SWITCHES", 300))
    chance = random.Random(4)
    readers = [start(broker, READER, arguments=[str(switches // 8)]) for _ in range(8)]
    done = 0
    while done < switches or any(reader.poll() is None for reader in readers):
        assert all(reader.poll() in (None, 0) for reader in readers), "a reader failed"
        writer = start(broker, WRITER, arguments=[str(done)])
        for _ in range(chance.randrange(1, max(switches // 5, 2))):
            writer.stdout.readline()
            done += 1
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
    for reader in readers:
        assert reader.communicate(timeout=60) == ("whole\n", "")
    c.remove("m/")
