"""How many trials can share a GPU: worked out from what the first ones take of it, which have one each."""

import logging
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

MEMORY: Final = 0.9  # of a GPU's memory that trials may take together
BUSY: Final = 1.1  # of a GPU's time that trials may want together: with more, each only waits for the others
CONTEXT_MIB: Final = 600  # of a process on the GPU, beside its tensors
SAMPLE_SECONDS: Final = 0.2
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Use:
    """What a trial took of the GPU that it had to itself."""

    peak_mib: float
    total_mib: float
    busy: float  # fraction of the time in which some kernel ran, as NVML tells it

    def __str__(self) -> str:
        return f"{self.peak_mib:.0f} of {self.total_mib:.0f} MiB at the peak, busy {self.busy:.0%} of the time"


def trials_per_gpu(uses: Sequence[Use], *, most: int) -> int:
    """How many trials to put on a GPU, after the largest and the busiest of those that were looked at; at least 1."""
    if not uses:
        return 1
    fit = min(MEMORY * use.total_mib / max(use.peak_mib, 1.0) for use in uses)
    idle = min(BUSY / max(use.busy, 0.01) for use in uses)
    return max(1, min(most, int(fit), int(idle)))


def has_gpu() -> bool:
    """Whether this machine has a GPU, without loading torch."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return False
    count = pynvml.nvmlDeviceGetCount()
    pynvml.nvmlShutdown()
    return bool(count)


def gpu_name() -> str:
    """The name of this process's GPU, without loading torch; "" where there is none."""
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return ""
    try:
        first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(first) if first.isdecimal() else 0)
        return str(pynvml.nvmlDeviceGetName(handle))
    except pynvml.NVMLError:
        return ""
    finally:
        pynvml.nvmlShutdown()


@contextmanager
def measure_gpu() -> Iterator[list[Use]]:
    """What the block takes of this process's GPU is in the list at its end; nothing where there is none."""
    from trainyard.training.telemetry import sample_periodically, visible_gpus  # torch

    found: list[Use] = []
    samples: list[tuple[float, float, float]] = []
    with visible_gpus() as gpus:
        if not gpus:
            yield found
            return

        def sample() -> None:
            _, used, total, busy, *_ = gpus[0].sample()
            samples.append((used or 0.0, total or 0.0, busy or 0.0))

        with sample_periodically(sample, SAMPLE_SECONDS):
            yield found
    if samples and all(total for _, total, _ in samples):
        used, totals, busy = zip(*samples, strict=True)
        found.append(Use(max(used), totals[0], sum(busy) / len(busy) / 100))


def keep_to(share: float) -> None:
    """Have torch take no more of the GPU than a share of its memory, so that no trial takes that of another."""
    import torch

    if share >= 1 or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(0).total_memory / 2**20
    torch.cuda.set_per_process_memory_fraction(max(0.02, share - CONTEXT_MIB / total))
