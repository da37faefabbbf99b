"""What the machine is and reaches: versions, memory bandwidth, arithmetic throughput, telemetry of the GPU."""

import os
import sys
import time
from collections.abc import Callable

import torch
from trainyard.cluster.telemetry import visible_gpus
from trainyard.training.gpu_utilization import gpu_peak

from gpu_check.rig import Rig


def check_environment(rig: Rig) -> None:
    """Versions, and whether the peak performance of the GPU is known."""
    cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
    versions = f"Python {sys.version.split()[0]}, torch {torch.__version__}, cuDNN {cudnn}"
    cpus = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} CPUs"
    # torch has this function from 2.12 on.
    ask_settings = getattr(torch._C, "_accelerator_getAllocatorSettings", lambda: "allocator settings unknown")
    allocator = ask_settings()
    rig.report.inform("environment", f"{versions}, {rig.gpu_name}, {cpus}, {allocator}")
    if rig.has_gpu:
        rig.report.inform("peak performance", gpu_peak(rig.gpu_name) or "unknown: no MFU")


def check_ceilings(rig: Rig) -> None:
    """The memory bandwidth and the bf16 throughput that this GPU really reaches, which no loop can exceed."""
    size = rig.size(2**30, 2**16)
    source = torch.empty(size, dtype=torch.uint8, device=rig.device)
    target = torch.empty_like(source)
    bandwidth = 2 * size / seconds_of(lambda: target.copy_(source), rig, repeats=20)
    side = rig.size(8192, 64)
    matrix = torch.randn(side, side, device=rig.device, dtype=torch.bfloat16)
    flops = 2 * side**3 / seconds_of(lambda: matrix @ matrix, rig, repeats=10)
    rig.report.inform("ceilings", f"copy {bandwidth / 1e12:.2f} TB/s, bf16 matmul {flops / 1e12:.0f} TFLOP/s")


def seconds_of(work: Callable[[], object], rig: Rig, *, repeats: int) -> float:
    """Mean duration of a piece of work, after three that do not count."""
    for _ in range(3):
        work()
    wait_for(rig)
    began = time.perf_counter()
    for _ in range(repeats):
        work()
    wait_for(rig)
    return (time.perf_counter() - began) / repeats


def wait_for(rig: Rig) -> None:
    """Wait until the GPU has finished all work."""
    if rig.has_gpu:
        torch.cuda.synchronize()


def check_telemetry(rig: Rig) -> None:
    """NVML finds the GPU by torch's UUID."""
    with visible_gpus() as gpus:
        rows = [gpu.sample() for gpu in gpus]
    if rig.has_gpu:
        rig.report.check("telemetry", bool(rows), rows or "NVML reports no GPU")
    else:
        rig.report.inform("telemetry", "needs a GPU")
