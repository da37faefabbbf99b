"""The GPU of a worker: the limit of its memory on a shared GPU, and a health check.

The check runs in a subprocess, because a broken GPU may hang or kill the process.
"""

import subprocess
from dataclasses import dataclass
from typing import Final

from trainyard.cluster.gpus import has_gpu
from trainyard.utils.import_path import helper_command
from trainyard.utils.text import describe_exit

CONTEXT_MIB: Final = 600  # GPU memory of a process beside its tensors
CHECK_SECONDS: Final = 120.0  # including the import of torch
SIZE: Final = 1024  # rows and columns of the matrices
PATTERN_MIB: Final = 256  # of GPU memory to write and read back; other trials may use the rest


def limit_gpu_memory(fraction: float) -> None:
    """Limit torch to a fraction of the GPU's memory, so that no trial takes the memory of another."""
    import torch

    if fraction >= 1 or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(0).total_memory / 2**20
    torch.cuda.set_per_process_memory_fraction(max(0.02, fraction - CONTEXT_MIB / total))


@dataclass(frozen=True)
class GpuChecked:
    """The result of a check of a GPU."""

    is_broken: bool
    finding: str


def check_gpu() -> GpuChecked:
    """The result of a check of this process's GPU."""
    try:
        done = subprocess.run(
            helper_command("packing.worker_gpu"), text=True, capture_output=True, check=False, timeout=CHECK_SECONDS
        )
    except subprocess.TimeoutExpired:
        return GpuChecked(True, f"no answer within {CHECK_SECONDS:.0f} s")
    lines = (done.stdout if done.returncode == 0 else done.stderr).strip().splitlines()
    return GpuChecked(done.returncode != 0, lines[-1] if lines else f"{describe_exit(done.returncode)}, no message")


def probe_gpu() -> str:
    """Test the GPU; returns what was tested.

    Raises:
        RuntimeError: it does not work. CUDA errors are RuntimeErrors, too.
    """
    if not has_gpu():
        return "there is no GPU to check"
    import torch

    if torch.version.cuda is None:
        return "nothing was checked: torch is built without CUDA"
    if not torch.cuda.is_available():
        raise RuntimeError("there is a GPU, but torch cannot use it")
    from trainyard.cluster.telemetry import visible_gpus

    with visible_gpus() as gpus:
        faults = [fault for gpu in gpus for fault in gpu.faults()]
    if faults:
        raise RuntimeError("; ".join(faults))
    for number in range(torch.cuda.device_count()):
        _compute(f"cuda:{number}")
    return "no fault found; look for Xid messages in the kernel log of its node"


def _compute(device: str) -> None:
    """Multiply small integers, whose products are exact in any precision, and write and read back some memory."""
    import torch

    factor = torch.randint(-8, 9, (SIZE, SIZE), generator=torch.Generator().manual_seed(0)).float()
    on_gpu = factor.to(device)
    if not torch.equal((on_gpu @ on_gpu).cpu(), factor @ factor):
        raise RuntimeError("a matrix product is wrong")
    pattern = torch.arange(PATTERN_MIB * 2**18, dtype=torch.int32, device=device)
    copy = pattern.clone()
    if not torch.equal(copy, pattern) or int(copy[-1]) != copy.numel() - 1:
        raise RuntimeError("its memory does not retain the data that is written to it")


if __name__ == "__main__":
    print(probe_gpu())
