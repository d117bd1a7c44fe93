"""The peak rates of this machine, measured: matrix products, memory bandwidth, all-reduce over processes."""

import json
import os
import platform
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch
import torch.distributed as dist
from torch.multiprocessing.spawn import spawn

from attnkit.device import best_device
from attnkit.half import products_in_float32
from attnkit.profile.machine import PRODUCTS, Machine

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
SECONDS = 0.5  # minimum duration of each measurement, in seconds
LONG = 0.05  # seconds after which a matrix product is large enough


def measure_machine(*, processes: int = 1) -> Machine:
    """Measure a GPU, or the CPU with the threads that torch uses; and the network, if there are several processes."""
    device = best_device()
    return Machine(
        device=torch.cuda.get_device_name() if device.type == "cuda" else f"{platform.machine()} CPU, {torch.get_num_threads()} threads",
        memory=memory_size(device),
        shares_memory=device.type == "cpu",
        tflops={kind: product_rate(DTYPES[kind], device, seconds=SECONDS) for kind in PRODUCTS if device.type == "cuda" or kind != "fp16"},
        memory_bandwidth=copy_rate(device, seconds=SECONDS),
        bandwidth=sum_rate(processes, seconds=SECONDS) if processes > 1 else None,
    )


def memory_size(device: torch.device) -> int:
    """Return the memory of a device in bytes; on a CPU, the memory that this process may use."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory)
    sizes = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for limit in ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes"):  # limits of a container
        if Path(limit).exists() and (text := Path(limit).read_text(encoding="ascii").strip()).isdigit():
            sizes.append(int(text))
    return min(sizes)


def product_rate(dtype: torch.dtype, device: torch.device, *, seconds: float) -> float:
    """Return the highest TFLOP/s in products of square matrices, doubled in size until one takes `LONG` seconds or has 16,384 rows."""
    size, best = 256, 0.0
    while True:
        a, b = (torch.randn(size, size, device=device).to(dtype) for _ in range(2))  # a GPU multiplies equal numbers faster
        with products_in_float32():  # as in training
            shortest = _shortest(lambda a=a, b=b: a @ b, device, seconds=seconds)  # type: ignore[misc]
        best = max(best, 2 * size**3 / shortest / 1e12)
        if shortest > LONG or size >= 16_384:
            return best
        size *= 2


def copy_rate(device: torch.device, *, seconds: float) -> float:
    """Return the memory bandwidth in GB/s, reads plus writes, by copying a tensor that exceeds all caches."""
    source = torch.ones(2**28 if device.type == "cuda" else 2**26, device=device)
    target = torch.empty_like(source)
    return 2 * 4 * source.numel() / _shortest(lambda: target.copy_(source), device, seconds=seconds) / 1e9


def _shortest(call: Callable[[], object], device: torch.device, *, seconds: float) -> float:
    """Return the seconds of the fastest call: a peak rate must not suffer from other users of the machine."""
    timed(call, device)  # warm-up: the first call allocates memory and selects a kernel
    began, times = time.perf_counter(), [timed(call, device), timed(call, device)]
    while time.perf_counter() - began < seconds:
        times.append(timed(call, device))
    return min(times)


def timed(call: Callable[[], object], device: torch.device) -> float:
    """Return the seconds of a call, until the device has done all of it."""

    def wait() -> None:
        if device.type == "cuda":
            torch.cuda.synchronize(device)

    wait()
    began = time.perf_counter()
    call()
    wait()
    return time.perf_counter() - began


def sum_rate(processes: int, *, seconds: float) -> float:
    """Return the GB/s that each process sends in a ring all-reduce of 64 MiB: over NCCL if each has a GPU, otherwise over gloo."""
    with tempfile.TemporaryDirectory() as folder:
        spawn(_sum, args=(processes, folder, seconds), nprocs=processes)  # type: ignore[no-untyped-call]
        return float(json.loads((Path(folder) / "rate").read_text(encoding="ascii")))


def _sum(rank: int, processes: int, folder: str, seconds: float) -> None:
    on_gpu = torch.cuda.device_count() >= processes
    device = torch.device("cuda", rank) if on_gpu else torch.device("cpu")
    if on_gpu:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if on_gpu else "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=processes)
    x = torch.zeros(2**24, device=device)
    times: list[float] = []
    more = torch.ones(1, device=device)
    began = time.perf_counter()
    while more.item():
        start = time.perf_counter()
        dist.all_reduce(x)
        if on_gpu:
            torch.cuda.synchronize()
        times.append(time.perf_counter() - start)
        more.fill_(float(rank == 0 and (len(times) < 3 or time.perf_counter() - began < seconds)))
        dist.all_reduce(more)  # the first process decides
    if rank == 0:
        sent = 2 * (processes - 1) / processes * 4 * x.numel()
        (Path(folder) / "rate").write_text(json.dumps(sent / min(times) / 1e9), encoding="ascii")
    dist.destroy_process_group()
