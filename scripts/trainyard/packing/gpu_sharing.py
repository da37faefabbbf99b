"""The GPU of a trial: its use, measured with NVML, and the limit of its memory on a shared GPU."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

MEMORY_FRACTION: Final = 0.9  # of a GPU's memory that all its trials may use together
CONTEXT_MIB: Final = 600  # GPU memory of a process beside its tensors
SAMPLE_SECONDS: Final = 0.2


@dataclass(frozen=True)
class GpuUse:
    """GPU memory and utilization of a trial that ran alone on its GPU."""

    peak_mib: float
    total_mib: float
    busy: float  # as NVML reports it: the fraction of time in which any kernel ran, even one that leaves room for more


def trials_that_fit(largest: GpuUse) -> int:
    """How many trials fit the memory of a GPU, if none needs more than this one."""
    return int(MEMORY_FRACTION * largest.total_mib / max(largest.peak_mib, 1.0))


@contextmanager
def measure_gpu() -> Iterator[list[GpuUse]]:
    """Measure the GPU use of the block; at its end, the yielded list holds the result if there is a GPU."""
    from trainyard.training.telemetry import sample_periodically, visible_gpus  # imports pynvml: in jobs only

    uses: list[GpuUse] = []
    samples: list[tuple[float, float, float]] = []
    with visible_gpus() as gpus:
        if not gpus:
            yield uses
            return

        def sample() -> None:
            _, used, total, busy, *_ = gpus[0].sample()
            samples.append((used or 0.0, total or 0.0, busy or 0.0))

        with sample_periodically(sample, SAMPLE_SECONDS):
            yield uses
    if samples and all(total for _, total, _ in samples):
        used, totals, busy = zip(*samples, strict=True)
        uses.append(GpuUse(max(used), totals[0], sum(busy) / len(busy) / 100))


def limit_gpu_memory(fraction: float) -> None:
    """Limit torch to a fraction of the GPU's memory, so that no trial takes the memory of another."""
    import torch

    if fraction >= 1 or not torch.cuda.is_available():
        return
    total = torch.cuda.get_device_properties(0).total_memory / 2**20
    torch.cuda.set_per_process_memory_fraction(max(0.02, fraction - CONTEXT_MIB / total))
