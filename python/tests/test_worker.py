"""Tests that workers of fsdp.torch.DataLoader end when their trainer is killed.
"""

import os
import signal

from conftest import run, until


def test_workers_end_with_a_trainer_that_is_killed(broker):
    script = """
        import fsdp.torch, os, signal, torch
        batches = iter(fsdp.torch.DataLoader([torch.ones(9)] * 999, num_workers=2))
        next(batches)
        print(*(worker.pid for worker in batches._workers), flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    status, out, _ = run(broker, script)
    assert status == -signal.SIGKILL
    for pid in out.split():
        until(lambda: not os.path.exists(f"/proc/{pid}"), "the worker ends")


def test_a_worker_started_after_its_trainer_was_killed_ends(broker):
    """torch's watchdog takes the process that is its parent at that time for
    the trainer."""
    script = """
        import fsdp.torch, os, signal, time, torch
        from torch.utils.data._utils import worker

        trainer = os.getpid()

        class Late(worker.ManagerWatchdog):
            def __init__(self):
                while os.getppid() == trainer:
                    time.sleep(0.01)
                super().__init__()

        worker.ManagerWatchdog = Late
        batches = iter(fsdp.torch.DataLoader([torch.ones(9)] * 9, num_workers=2))
        os.kill(trainer, signal.SIGKILL)
    """
    # run() waits for the end of stdout, which the workers have open, too.
    status, out, _ = run(broker, script)
    assert (status, out) == (-signal.SIGKILL, "")
