"""Measures what PyTorch itself does in place of fsdpd; fsdp-bench gpu runs this.

    torch_peer.py SIZE...      bytes of whole f32 parameters

Prints a line for each row, with fields separated by tabs: name, variant, median
and 99th percentile in us, number of samples, bytes (0 for none), bus factor.
The exit status is 77, with a sentence, if there is no PyTorch with CUDA.
"""
import os
import sys
import time

try:
    import torch
    import torch.distributed as dist
    import torch.multiprocessing as mp
except ImportError as error:
    print(error, file=sys.stderr)
    sys.exit(77)

RANKS = 2
HANDOVERS = 200
ROUNDS = 11


def put(name, variant, times, size=0, factor=0.0):
    times = sorted(1e6 * t for t in times)
    median = times[(len(times) - 1) // 2]
    p99 = times[min(len(times) - 1, int(0.99 * len(times)))]
    print(name, variant, median, p99, len(times), size, factor, sep="\t",
          flush=True)


def echo(there, back):
    """Replies to each tensor until None comes. The storage of a tensor is
    shared, not copied."""
    while (tensor := there.get()) is not None:
        back.put(tensor.numel())
        del tensor


def measure_queue():
    """Passes a device tensor to another process, and waits for its reply."""
    there, back = mp.Queue(), mp.Queue()
    process = mp.Process(target=echo, args=(there, back), daemon=True)
    process.start()
    times = []
    for i in range(HANDOVERS + 10):
        tensor = torch.zeros(1024, device="cuda")
        torch.cuda.synchronize()
        start = time.monotonic()
        there.put(tensor)
        back.get()
        if i >= 10:
            times.append(time.monotonic() - start)
    there.put(None)
    process.join()
    put("torch_mp_queue", "4 KiB and the answer", times)


def time_rounds(call):
    times = []
    for i in range(ROUNDS + 2):
        dist.barrier()
        torch.cuda.synchronize()
        start = time.monotonic()
        for _ in range(5):
            call()
            torch.cuda.synchronize()
        if i >= 2:
            times.append((time.monotonic() - start) / 5)
    return times


def run_rank(rank, store, sizes):
    n_devices = torch.cuda.device_count()
    if n_devices < RANKS:
        os.environ["NCCL_HOSTID"] = f"node-{rank}"
        os.environ.setdefault("NCCL_SOCKET_IFNAME", "lo")
        os.environ.setdefault("NCCL_IB_DISABLE", "1")
    torch.cuda.set_device(rank % n_devices)
    dist.init_process_group("nccl", init_method="file://" + store, rank=rank,
                            world_size=RANKS)
    for size in sizes:
        whole = torch.zeros(size // 4, device="cuda")
        part = torch.zeros(size // 4 // RANKS, device="cuda")
        gather = time_rounds(
            lambda: dist.all_gather_into_tensor(whole, part))
        reduce = time_rounds(
            lambda: dist.reduce_scatter_tensor(part, whole))
        if rank == 0:
            factor = (RANKS - 1) / RANKS
            text = (f"{size >> 20} MiB" if size >= 1 << 20
                    else f"{size >> 10} KiB")
            put("torch_all_gather", text, gather, size, factor)
            put("torch_reduce_scatter", text, reduce, size, factor)
    dist.destroy_process_group()


def main():
    if not torch.cuda.is_available():
        print("PyTorch sees no GPU", file=sys.stderr)
        sys.exit(77)
    mp.set_start_method("spawn")
    measure_queue()
    store = os.path.join(os.environ["FSDP_BENCH_DIR"], "torch-store")
    mp.spawn(run_rank, (store, [int(size) for size in sys.argv[1:]]), RANKS)


if __name__ == "__main__":
    main()
