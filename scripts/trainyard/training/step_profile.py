"""A profile of some steps of a training: a trace by torch.profiler, and on a GPU a snapshot of its memory."""

import gzip
import logging
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import torch
from torch.profiler import ProfilerActivity, profile, schedule

from trainyard.config.train import ProfiledSteps
from trainyard.utils.files import atomic_write

# Names by which TensorBoard's plugin finds a trace, and which say whose it is. Chrome and Perfetto open it, too.
TRACE: Final = "rank0.pt.trace.json.gz"
MEMORY: Final = "rank0.memory.pickle"  # for https://docs.pytorch.org/memory_viz
ALLOCATIONS: Final = 100_000  # of which a snapshot has the history: those of the last steps
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class StepProfiler:
    """Records the steps of a profile into files of a folder."""

    steps: ProfiledSteps
    folder: Path

    @contextmanager
    def record(self, device: torch.device) -> Iterator[Callable[[], None]]:
        """In the block, record the steps; yields the function that ends a step.

        The step before the first one warms the profiler up. If the block ends before the last step, the files have the
        steps up to there.
        """
        first, last = self.steps
        on_gpu = device.type == "cuda"
        activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if on_gpu else [])]
        if on_gpu:
            torch.cuda.memory._record_memory_history(max_entries=ALLOCATIONS)
        waits = schedule(wait=max(0, first - 2), warmup=min(1, first - 1), active=last - first + 1, repeat=1)
        try:
            with profile(
                activities=activities,
                schedule=waits,
                on_trace_ready=self._save,
                record_shapes=True,
                profile_memory=True,
            ) as profiler:
                yield profiler.step
        finally:
            if on_gpu:
                torch.cuda.memory._record_memory_history(enabled=None)
        if profiler.step_num < first:
            log.warning("no profile: the training ended after step %d, before step %d", profiler.step_num, first)

    def _save(self, profiler: profile) -> None:
        with tempfile.NamedTemporaryFile(suffix=".json") as plain:
            profiler.export_chrome_trace(plain.name)
            with atomic_write(self.folder / TRACE, "wb") as file:
                file.write(gzip.compress(Path(plain.name).read_bytes()))
        if ProfilerActivity.CUDA in profiler.activities:
            with atomic_write(self.folder / MEMORY, "wb") as file:
                torch.cuda.memory._dump_snapshot(file.name)  # type: ignore[no-untyped-call]
            torch.cuda.memory._record_memory_history(enabled=None)
        log.info("profile of steps %d to %d: %s", *self.steps, self.folder / TRACE)
