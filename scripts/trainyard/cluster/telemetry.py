"""Telemetry of a node during a training: GPUs with NVML, CPUs and memory of its processes with psutil.

<folder>/gpu-<node>.csv   a row per sample and GPU; only the header without GPUs
<folder>/cpu-<node>.csv   a row per sample
"""

import contextlib
import csv
import io
import logging
import os
import statistics
import subprocess
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import psutil
import pynvml

from trainyard.cluster.stop_request import shielded_children
from trainyard.utils.errors import storage_error
from trainyard.utils.files import append_whole
from trainyard.utils.import_path import helper_command

GPU_COLUMNS = ("time", "gpu", "name", "memory_used_mib", "memory_total_mib", "utilization_percent", "power_watts",
               "temperature_celsius", "energy_joules")  # fmt: skip
CPU_COLUMNS = ("time", "cpu_percent", "rss_mib", "processes")
JOULES_PER_KWH = 3.6e6
SAMPLE_SECONDS = 5.0  # between two samples
SHORTEST_SECONDS = 0.2  # between two samples: the kernel counts CPU time in hundredths of a second
log = logging.getLogger(__name__)


@dataclass(frozen=True)
class GpuMemory:
    """Memory in use on one GPU during a training, by all processes, in MiB."""

    node: str
    gpu: int
    peak_mib: float
    avg_mib: float
    mode_mib: float  # the most frequent value

    def __str__(self) -> str:
        return (
            f"[gpu_memory_log - GPU {self.gpu}] Peak = {self.peak_mib:.0f} MiB, Avg = {self.avg_mib:.2f} MiB, "
            f"Mode = {self.mode_mib:.0f} MiB"
        )


@contextmanager
def record_telemetry(
    folder: Path,
    node: str,
    *,
    overwrite: bool,
    root: psutil.Process,
    gpus: Sequence["Gpu"] = (),
    seconds: float = SAMPLE_SECONDS,
) -> Iterator[None]:
    """Write a sample every `seconds` while the block runs, at its start and at its end.

    Samples of previous runs are kept unless `overwrite`. `root` is the process whose tree is measured. If telemetry of
    the GPUs or of the CPUs fails, it ends with a warning, and the other one continues; it never stops a training.
    """
    with contextlib.ExitStack() as stack:
        tree = ProcessTree(root)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            write_gpu = stack.enter_context(_appended(folder / f"gpu-{node}.csv", GPU_COLUMNS, overwrite=overwrite))
            write_cpu = stack.enter_context(_appended(folder / f"cpu-{node}.csv", CPU_COLUMNS, overwrite=overwrite))
        except OSError as error:
            log.warning("no telemetry: %s", storage_error(error, folder) or error)
            yield
            return

        def sample_gpus() -> None:
            now = round(time.time(), 3)
            write_gpu([now, number, *gpu.sample()] for number, gpu in enumerate(gpus))

        def sample_cpus() -> None:
            write_cpu([[round(time.time(), 3), *tree.sample()]])

        if gpus:
            stack.enter_context(sample_periodically(sample_gpus, seconds, what="GPU telemetry"))
        with sample_periodically(sample_cpus, seconds, what="telemetry"):
            yield


@contextmanager
def record_telemetry_beside(
    folder: Path, node: str, *, overwrite: bool, root: psutil.Process, gpus: Sequence[str]
) -> Iterator[None]:
    """`record_telemetry` in a process of its own, for a block that trains.

    Its scan of all processes of the node would hold Python's lock in this process, for which all other ranks wait.
    `gpus` are UUIDs as torch has them.
    """
    options = [str(folder.absolute()), node, str(root.pid), str(int(overwrite))]
    with shielded_children():  # it ends with the block, or with this process
        process = subprocess.Popen(
            [*helper_command("cluster.telemetry"), *options],
            stdin=subprocess.PIPE,
            env=os.environ | {"CUDA_VISIBLE_DEVICES": ",".join(gpus)},
            start_new_session=True,
        )
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            process.communicate(b"\n")
        if process.returncode:
            log.warning("telemetry stops: its process ended before the training (exit code %d)", process.returncode)


@contextmanager
def sample_periodically(sample: Callable[[], None], seconds: float, *, what: str) -> Iterator[None]:
    """Call `sample` every `seconds` while the block runs, at its start and at its end.

    When it fails, a warning says that `what` stops, and it is not called again.
    """
    ended = threading.Event()

    def keep_sampling() -> None:
        try:
            sample()
            while not ended.wait(seconds):
                sample()
            sample()
        except Exception as error:
            log.warning("%s stops: %s", what, error)

    thread = threading.Thread(target=keep_sampling, name="telemetry", daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


@contextmanager
def _appended(
    path: Path, columns: tuple[str, ...], *, overwrite: bool
) -> Iterator[Callable[[Iterable[Sequence[Any]]], None]]:
    """A function that appends whole rows to a CSV file at once, so that they can be read while the job runs."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | (os.O_TRUNC if overwrite else 0), 0o644)

    def write(rows: Iterable[Sequence[Any]]) -> None:
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        append_whole(fd, text.getvalue().encode())

    try:
        if os.fstat(fd).st_size == 0:
            write([columns])
        yield write
    finally:
        os.close(fd)


class ProcessTree:
    """A process and all its descendants."""

    def __init__(self, root: psutil.Process) -> None:
        self._root = root
        self._sampled_at = time.monotonic()
        self._spent = {process: _cpu_seconds(process) for process in self._family()}

    def sample(self) -> list[float | int]:
        """CPU percent since the last sample (100 is one CPU), resident memory in MiB, and number of processes.

        psutil's own `cpu_percent` is 0 in the first sample of each process. Here, a process that has started since the
        last sample counts with all of its CPU time.
        """
        time.sleep(max(0.0, self._sampled_at + SHORTEST_SECONDS - time.monotonic()))
        before = self._spent
        seconds = 0.0
        resident = 0
        self._spent = {}
        for process in self._family():
            with contextlib.suppress(psutil.Error):  # the process has just ended
                spent = _cpu_seconds(process)
                seconds += spent - before.get(process, 0.0)
                resident += process.memory_info().rss
                self._spent[process] = spent
        previous = self._sampled_at
        self._sampled_at = time.monotonic()
        percent = 100 * seconds / (self._sampled_at - previous)
        return [round(percent, 1), round(resident / 2**20, 1), len(self._spent)]

    def _family(self) -> list[psutil.Process]:
        return [self._root, *self._root.children(recursive=True)]


def _cpu_seconds(process: psutil.Process) -> float:
    """CPU time of a process in user and kernel mode; 0 if it has ended."""
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@contextmanager
def visible_gpus() -> Iterator[list["Gpu"]]:
    """The GPUs visible to this process, in the order of torch, which is imported only where NVML finds a driver."""
    with contextlib.ExitStack() as stack:
        gpus: list[Gpu] = []
        try:
            pynvml.nvmlInit()
            stack.callback(pynvml.nvmlShutdown)
            import torch

            gpus = [Gpu(str(torch.cuda.get_device_properties(i).uuid)) for i in range(torch.cuda.device_count())]
        except Exception as error:
            has_gpu = "torch" in sys.modules and sys.modules["torch"].cuda.is_available()  # it may be AMD's
            if has_gpu or not isinstance(error, pynvml.NVMLError_LibraryNotFound):
                log.warning("no telemetry of GPUs: %s", error)
        yield gpus


@contextmanager
def allocated_gpus() -> Iterator[list["Gpu"]]:
    """The GPUs that CUDA_VISIBLE_DEVICES names, without torch; none without a driver.

    For numbers, the GPUs of a node must be of one model: then NVML numbers them as CUDA does.
    """
    names = [name for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name not in ("", "-1")]
    with contextlib.ExitStack() as stack:
        gpus: list[Gpu] = []
        with contextlib.suppress(pynvml.NVMLError):
            if names:
                pynvml.nvmlInit()
                stack.callback(pynvml.nvmlShutdown)
                gpus = list(map(Gpu, names))
        yield gpus


def _find_gpu(name: str) -> Any:
    """NVML's handle of a GPU."""
    if name.isdecimal():
        return pynvml.nvmlDeviceGetHandleByIndex(int(name))
    if name.startswith(("GPU-", "MIG-")):
        return pynvml.nvmlDeviceGetHandleByUUID(name)
    try:  # torch has no prefix
        return pynvml.nvmlDeviceGetHandleByUUID(f"GPU-{name}")
    except pynvml.NVMLError_NotFound:
        return pynvml.nvmlDeviceGetHandleByUUID(f"MIG-{name}")


class Gpu:
    """One GPU by its UUID, which torch and NVML share: their numbering differs when a job sees some GPUs only.

    Or by its number, as NVML counts.
    """

    def __init__(self, name: str) -> None:
        self._handle = _find_gpu(name)
        self._first_millijoules = self._millijoules()

    def joules(self) -> float | None:
        """The energy that the GPU has used since this object was made; None where NVML does not count it."""
        first = self._first_millijoules
        now = self._millijoules()
        return None if first is None or now is None else (now - first) / 1000

    def _millijoules(self) -> float | None:
        try:
            return float(pynvml.nvmlDeviceGetTotalEnergyConsumption(self._handle))
        except pynvml.NVMLError:  # it is not counted, or the GPU is lost
            return None

    def sample(self) -> list[Any]:
        """The values of `GPU_COLUMNS` from `name` on; "" for those that this GPU, or the site, does not give."""
        memory = self._query(pynvml.nvmlDeviceGetMemoryInfo)
        milliwatts = self._query(pynvml.nvmlDeviceGetPowerUsage)
        joules = self.joules()
        return [
            self._query(pynvml.nvmlDeviceGetName),
            memory and round(memory.used / 2**20),
            memory and round(memory.total / 2**20),
            getattr(self._query(pynvml.nvmlDeviceGetUtilizationRates), "gpu", ""),
            milliwatts if milliwatts == "" else round(milliwatts / 1000, 1),
            self._query(pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
            "" if joules is None else round(joules, 1),
        ]

    def faults(self) -> list[str]:
        """Descriptions of the memory errors that NVML reports."""
        ecc = pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, pynvml.NVML_VOLATILE_ECC
        uncorrected = self._query(pynvml.nvmlDeviceGetTotalEccErrors, *ecc)
        remapped = self._query(pynvml.nvmlDeviceGetRemappedRows)  # corrected, uncorrected, is pending, has failed
        descriptions = [f"{uncorrected} uncorrected ECC errors since the driver was loaded"] if uncorrected else []
        if remapped and remapped[2]:
            descriptions.append("rows of its memory wait for a reset to be remapped")
        if remapped and remapped[3]:
            descriptions.append("rows of its memory could not be remapped")
        return descriptions

    def _query(self, query: Callable[..., Any], *more: Any) -> Any:
        try:
            return query(self._handle, *more)
        except (pynvml.NVMLError_NotSupported, pynvml.NVMLError_NoPermission):
            return ""


# ---- statistics of the samples


def gpu_memory(folder: Path) -> list[GpuMemory]:
    """Peak, mean and mode of the memory of each GPU with samples in `folder`."""
    used: dict[tuple[str, int], list[float]] = defaultdict(list)
    for node, row in read_samples(folder, "gpu"):
        if row["memory_used_mib"]:
            used[node, int(row["gpu"])].append(float(row["memory_used_mib"]))
    return [
        GpuMemory(node, gpu, max(values), round(statistics.fmean(values), 2), statistics.mode(values))
        for (node, gpu), values in sorted(used.items())
    ]


def energy_kwh(folder: Path) -> float | None:
    """The energy of all GPUs with samples in `folder`; None if none has counted it.

    The counter begins at 0 in each run, so that what other jobs used between two runs is not included.
    """
    total = 0.0
    last: dict[tuple[str, str], float] = {}
    for node, row in read_samples(folder, "gpu"):
        if row.get("energy_joules"):
            gpu = (node, row["gpu"])
            joules = float(row["energy_joules"])
            before = last.get(gpu, 0.0)
            total += joules - before if joules >= before else joules
            last[gpu] = joules
    return total / JOULES_PER_KWH if last else None


def peak_resident_mib(folder: Path) -> float | None:
    """Peak resident memory of the processes of a node, over all nodes; None without samples."""
    return max((float(row["rss_mib"]) for _, row in read_samples(folder, "cpu")), default=None)


def recorded_gpu_name(folder: Path) -> str | None:
    """The name of the first GPU with samples in `folder`; None without GPUs."""
    return next((row["name"] for _, row in read_samples(folder, "gpu")), None)


def telemetry_summary(folder: Path, memory: Sequence[GpuMemory]) -> dict[str, Any]:
    """The fields of `summary.json` about memory; None, not zero, for a GPU without samples."""
    first = memory[0] if memory else None
    return {
        "gpu0_peak_mib": first and first.peak_mib,
        "gpu0_avg_mib": first and first.avg_mib,
        "gpu0_mode_mib": first and first.mode_mib,
        "cpu_rss_peak_mib": peak_resident_mib(folder),
        "energy_kwh": energy_kwh(folder),
        "gpu_memory": [asdict(each) for each in memory],
    }


def read_samples(folder: Path, kind: str) -> Iterator[tuple[str, dict[str, str]]]:
    """The node and the row of each sample of a kind, `gpu` or `cpu`, without rows that were cut off."""
    for path in sorted(folder.glob(f"{kind}-*.csv")):
        with open(path, newline="") as file:
            for row in csv.DictReader(file):
                if None not in (*row, *row.values()):  # too many fields, or too few
                    yield path.stem.removeprefix(f"{kind}-"), row


def main(folder: str, node: str, root: str, overwrite: str) -> None:
    """Record telemetry until a line comes, or the process that started this one has ended."""
    logging.basicConfig(format="%(message)s")
    process = psutil.Process(int(root))
    with allocated_gpus() as gpus:
        if not gpus and os.environ.get("CUDA_VISIBLE_DEVICES"):
            log.warning("no telemetry of GPUs: NVML does not find them")
        with record_telemetry(Path(folder), node, overwrite=overwrite == "1", root=process, gpus=gpus):
            sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
