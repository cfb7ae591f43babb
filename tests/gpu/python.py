"""Tests the Python package on a real GPU, with PyTorch. It is a stage of
tests/gpu/run.

    python.py DEVICE       DEVICE as `fsdpctl devices` prints it

Prints a line for each check. The exit status is 1 if a check failed, and 77,
with a sentence, if there is no PyTorch with CUDA.
"""

import subprocess
import sys
import time
import traceback

try:
    import torch

    import fsdp
except ImportError as error:
    print(error)
    sys.exit(77)

N = 1 << 22  # elements
WEIGHTS = 200  # of 4 MiB
PATIENCE = 60


def run(code):
    """Runs code in another process, which has `c` and `gpu`. Returns what it
    prints."""
    head = f"import time, torch, fsdp\nc, gpu = fsdp.connect(), {gpu!r}\n"
    command = [sys.executable, "-c", head + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE)
    assert done.returncode == 0, done.stderr[-400:]
    return done.stdout.strip()


def ms_since(start):
    return f"{1000 * (time.monotonic() - start):.2f} ms"


def a_tensor_of_the_host_is_put_on_the_device():
    array = torch.arange(1000, dtype=torch.float32)
    tensor = c.put("g/host", array, device=gpu).torch()
    assert tensor.is_cuda and torch.equal(tensor.cpu(), array)


def another_process_reads_it():
    assert run("print(c['g/host'].torch().sum().item())") == "499500.0"


def torch_writes_it_in_place():
    tensor = c.alloc((10,), "i64", device=gpu)
    tensor.torch().copy_(torch.arange(10, device="cuda"))
    torch.cuda.synchronize()
    tensor.publish("g/copied")
    assert c["g/copied"].torch().sum().item() == 45


def a_reader_s_stream_waits_for_the_writer_s():
    tensor = c.alloc((N,), "f32", device=gpu)
    whole = tensor.torch()
    writer, reader = torch.cuda.Stream(), torch.cuda.Stream()
    with torch.cuda.stream(writer):
        torch.cuda._sleep(10**9)
        whole.fill_(7)
    tensor.publish("g/late", stream=writer.cuda_stream)
    assert not writer.query(), "publish() waited"
    with torch.cuda.stream(reader):
        seen = fsdp.connect().get("g/late", stream=reader.cuda_stream)
        total = seen.torch().sum()
    assert total.item() == 7 * N


def a_model_is_attached_by_another_process():
    weight = torch.randn(1024, 1024)
    with c.stage("model", device=gpu) as stage:
        for i in range(WEIGHTS):
            stage.put(f"w{i}", weight)
    return run("""
torch.zeros(1, device="cuda")
start = time.monotonic()
weights = c.bundle("model").state_dict()
took = time.monotonic() - start
assert len(weights) == 200 and all(w.is_cuda for w in weights.values())
print(f"{1000 * took:.2f} ms, {float(weights['w7'][0, 0]):.6f}")
""").removesuffix(f", {weight[0, 0]:.6f}")


def a_kernel_that_writes_a_published_tensor_fails():
    return run("""
try:
    c["g/host"].torch().add_(1)
    torch.cuda.synchronize()
except Exception as error:
    print(str(error).splitlines()[0])
""")


def and_nobody_else_notices():
    assert c["g/host"].torch().sum().item() == 499500


CHECKS = [
    a_tensor_of_the_host_is_put_on_the_device,
    another_process_reads_it,
    torch_writes_it_in_place,
    a_reader_s_stream_waits_for_the_writer_s,
    a_model_is_attached_by_another_process,
    a_kernel_that_writes_a_published_tensor_fails,
    and_nobody_else_notices,
]

if not torch.cuda.is_available():
    print("this PyTorch has no CUDA")
    sys.exit(77)
gpu, c, n_failed = sys.argv[1], fsdp.connect(), 0
for check in CHECKS:
    start = time.monotonic()
    try:
        answer = check()
        print(f"ok: {check.__name__}: {answer or ''} ({ms_since(start)})", flush=True)
    except Exception:
        n_failed += 1
        print(f"FAILED: {check.__name__}: {traceback.format_exc(limit=-2)}", flush=True)
sys.exit(n_failed > 0)
