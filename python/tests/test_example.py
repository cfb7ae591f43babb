"""Tests the example with torch that scripts/demo runs."""

import os
import pathlib
import re
import subprocess
import sys

from conftest import PATIENCE

EXAMPLE = pathlib.Path(__file__).parents[1] / "examples" / "training.py"


def test_loaders_feed_a_trainer_and_processes_share_its_model(broker, c):
    # A user's torch has several threads, which the processes do not inherit.
    env = {**os.environ, "FSDP_SOCKET": broker.path, "OMP_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, EXAMPLE],
        env=env,
        capture_output=True,
        text=True,
        timeout=6 * PATIENCE,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.count("64 batches of 2 loaders") == 3
    users = re.findall(
        r"process (\d+): (\d+) of 1000 are right, 3 processes hold", done.stdout
    )
    assert len({pid for pid, _ in users}) == 3
    assert len({right for _, right in users}) == 1 and int(users[0][1]) > 900
    assert c.names("demo/torch/") == []
