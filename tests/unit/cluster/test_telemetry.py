"""Telemetry of a node, with and without GPUs."""

import csv
import multiprocessing
import os
import subprocess
import sys
import time
from itertools import pairwise
from types import SimpleNamespace

import psutil
import pytest
import torch
from project import ROOT, with_words
from slurm_cluster.waiting import wait_until
from trainyard.cluster import telemetry
from trainyard.cluster.telemetry import (
    CPU_COLUMNS,
    GPU_COLUMNS,
    GpuMemory,
    energy_kwh,
    gpu_memory,
    peak_resident_mib,
    record_telemetry,
)


def rows(path):
    with open(path, newline="") as file:
        return list(csv.DictReader(file))


def watch(folder, seconds=0.05, *, overwrite=True):
    with (
        telemetry.visible_gpus() as gpus,
        record_telemetry(folder, "n1", seconds=seconds, overwrite=overwrite, root=psutil.Process(), gpus=gpus),
    ):
        time.sleep(0.2)


def test_without_a_gpu_its_file_is_a_header_and_its_numbers_are_none(tmp_path):
    watch(tmp_path)
    assert (tmp_path / "gpu-n1.csv").read_text() == ",".join(GPU_COLUMNS) + "\n"
    assert gpu_memory(tmp_path) == []


def test_cpu_and_memory_are_those_of_the_whole_tree(tmp_path):
    code = "held = bytearray(200_000_000)\nprint('holds them', flush=True)\nwhile True: pass"
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        began, process = time.time(), psutil.Process(child.pid)
        before = sum(process.cpu_times()[:2])
        with record_telemetry(tmp_path, "n1", seconds=0.1, overwrite=True, root=psutil.Process()):
            wait_until(lambda: sum(process.cpu_times()[:2]) >= before + 0.5, what="half a second of CPU time")
        child.kill()
    samples = rows(tmp_path / "cpu-n1.csv")
    assert list(samples[0]) == list(CPU_COLUMNS)
    alone = psutil.Process().memory_info().rss / 2**20
    assert peak_resident_mib(tmp_path) > alone + 150
    times = [began, *(float(row["time"]) for row in samples)]
    seconds = [later - earlier for earlier, later in pairwise(times)]
    used = sum(float(row["cpu_percent"]) / 100 * each for row, each in zip(samples, seconds, strict=True))
    assert used >= 0.15, "of half a CPU second, however long it took; the times are those before each sample"
    assert max(int(row["processes"]) for row in samples) >= 2


def test_telemetry_whose_process_is_killed_ends_with_a_warning(tmp_path, caplog):
    known = set(psutil.Process().children())
    with telemetry.record_telemetry_beside(tmp_path, "n1", overwrite=True, root=psutil.Process(), gpus=[]):
        (process,) = set(psutil.Process().children()) - known
        process.kill()
    assert "telemetry stops: its process ended before the training (exit code -9)" in caplog.text


def test_a_process_beside_the_training_records_it_and_ends_with_it(tmp_path):
    """Also although a child of the training holds what it was started with, as workers of a DataLoader do."""
    begun = tmp_path / "cpu-n1.csv"
    with telemetry.record_telemetry_beside(tmp_path, "n1", overwrite=True, root=psutil.Process(), gpus=[]):
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=[600])
        child.start()
        wait_until(lambda: begun.exists() and rows(begun), what="the first sample")
        recorders = with_words("cluster.telemetry", psutil.Process().children())
        before = len(rows(begun))
    child.kill()
    child.join()
    assert len(rows(begun)) > before, "at the end, too"
    assert peak_resident_mib(tmp_path) > psutil.Process().memory_info().rss / 2**20 / 2
    assert len(recorders) == 1
    assert not recorders[0].is_running()


def test_the_first_sample_of_a_process_has_its_cpu_time():
    """psutil's own percentage is 0 in the first sample of each process."""
    me = psutil.Process()
    began, tree = time.monotonic(), telemetry.ProcessTree(me)
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as child:
        while sum(psutil.Process(child.pid).cpu_times()[:2]) < 0.3:
            time.sleep(0.02)
        percent = tree.sample()[0]
        child.kill()
    assert percent / 100 * (time.monotonic() - began) >= 0.25, "CPU seconds since the telemetry began"


def test_a_resumed_training_appends_its_samples_and_a_new_one_overwrites_them(tmp_path):
    watch(tmp_path)
    first = len(rows(tmp_path / "cpu-n1.csv"))
    watch(tmp_path, overwrite=False)
    assert len(rows(tmp_path / "cpu-n1.csv")) > first
    watch(tmp_path, 3600)
    assert len(rows(tmp_path / "cpu-n1.csv")) == 2, "one at the beginning, one at the end"


class MakeBelieveNvml:
    """A fake driver with two GPUs, one of which does not report its power."""

    NVML_TEMPERATURE_GPU = 0

    class NVMLError(Exception):
        pass

    class NVMLError_NotSupported(NVMLError):
        pass

    class NVMLError_NoPermission(NVMLError):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    class NVMLError_NotFound(NVMLError):
        pass

    used = [1000, 3000, 3000]

    def __init__(self):
        self.up = False
        self.looks = {"GPU-a": 0, "GPU-b": 0}
        self.millijoules = 7.2e9  # since the driver was loaded

    def nvmlInit(self):
        self.up = True

    def nvmlShutdown(self):
        self.up = False

    def nvmlDeviceGetHandleByUUID(self, uuid):
        assert self.up
        if uuid not in self.looks:
            raise self.NVMLError_NotFound
        return uuid

    def nvmlDeviceGetHandleByIndex(self, number):
        return list(self.looks)[number]

    def nvmlDeviceGetTotalEnergyConsumption(self, handle):
        if handle == "GPU-b":
            raise self.NVMLError_NotSupported
        self.millijoules += 1.8e9  # half a kilowatt-hour from one look to the next
        return self.millijoules

    def nvmlDeviceGetMemoryInfo(self, handle):
        self.looks[handle] += 1
        used = self.used[min(self.looks[handle], 3) - 1]
        return SimpleNamespace(used=used * 2**20, total=141_000 * 2**20)

    def nvmlDeviceGetName(self, handle):
        return "NVIDIA H200"

    def nvmlDeviceGetUtilizationRates(self, handle):
        return SimpleNamespace(gpu=0)

    def nvmlDeviceGetPowerUsage(self, handle):
        if handle == "GPU-b":
            raise self.NVMLError_NotSupported
        return 612_345

    def nvmlDeviceGetTemperature(self, handle, sensor):
        return 55


@pytest.fixture
def two_gpus(monkeypatch):
    nvml = MakeBelieveNvml()
    monkeypatch.setattr(telemetry, "pynvml", nvml)
    properties = [SimpleNamespace(uuid="a"), SimpleNamespace(uuid="b")]
    answers = {"is_available": lambda: True, "device_count": lambda: 2, "get_device_properties": properties.__getitem__}
    for name, answer in answers.items():
        monkeypatch.setattr(torch.cuda, name, answer)
    return nvml


def test_every_gpu_of_the_job_has_a_row_per_sample(two_gpus, tmp_path):
    watch(tmp_path, 3600)
    samples = rows(tmp_path / "gpu-n1.csv")
    assert [row["gpu"] for row in samples] == ["0", "1", "0", "1"]
    assert samples[0] | {"time": ""} == dict(
        zip(GPU_COLUMNS, ["", "0", "NVIDIA H200", "1000", "141000", "0", "612.3", "55", "1800000.0"], strict=True)
    )
    assert samples[1]["power_watts"] == "", "unknown is not zero"
    assert not two_gpus.up


def test_the_energy_is_that_of_the_training_and_not_of_other_jobs(two_gpus, tmp_path):
    """Of both runs: each looks at the beginning, for its first sample, and for its last one."""
    for overwrite in (True, False):
        watch(tmp_path, 3600, overwrite=overwrite)
        two_gpus.millijoules += 3.6e12  # of another job
    assert energy_kwh(tmp_path) == pytest.approx(2 * 2 * 0.5)
    assert [row["energy_joules"] for row in rows(tmp_path / "gpu-n1.csv")][1::2] == [""] * 4, "unknown is not zero"


def test_without_a_counter_the_energy_is_unknown(two_gpus, tmp_path):
    two_gpus.nvmlDeviceGetTotalEnergyConsumption = lambda handle: two_gpus.nvmlDeviceGetPowerUsage("GPU-b")
    watch(tmp_path, 3600)
    assert energy_kwh(tmp_path) is None
    assert telemetry.telemetry_summary(tmp_path, [])["energy_kwh"] is None


@pytest.mark.parametrize(("visible", "found"), [("0", 1), ("GPU-a,1", 2), ("", 0), ("-1", 0)])
def test_the_gpus_of_a_slot_are_found_without_torch(two_gpus, monkeypatch, visible, found):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    with telemetry.allocated_gpus() as gpus:
        assert [each.joules() for each in gpus] == [1.8e6, None][:found]
    assert not two_gpus.up


def test_a_part_of_a_gpu_has_telemetry_too(two_gpus, tmp_path):
    """torch names an instance of MIG by its UUID without a prefix, as it does a whole GPU."""
    two_gpus.looks = {"GPU-a": 0, "MIG-b": 0}
    watch(tmp_path, 3600)
    assert [row["gpu"] for row in rows(tmp_path / "gpu-n1.csv")] == ["0", "1", "0", "1"]


def test_peak_mean_and_mode_of_the_memory_of_each_gpu(two_gpus, tmp_path):
    for overwrite in (True, False):
        watch(tmp_path, 3600, overwrite=overwrite)
    assert gpu_memory(tmp_path) == [GpuMemory("n1", gpu, 3000, 2500.0, 3000) for gpu in (0, 1)]


def test_a_row_that_was_cut_off_before_the_next_one_does_not_count(tmp_path):
    cut = "105,0,H2107,0,H200,700,1000,90,,,"
    (tmp_path / "gpu-n1.csv").write_text(f"{','.join(telemetry.GPU_COLUMNS)}\n100,0,H200,900,1000,80,,,\n{cut}\n")
    assert gpu_memory(tmp_path) == [GpuMemory("n1", 0, 900, 900.0, 900)]


def test_the_line_about_memory_has_peak_mean_and_mode():
    assert str(GpuMemory("n1", 0, 26532, 22458.625, 26532)) == (
        "[gpu_memory_log - GPU 0] Peak = 26532 MiB, Avg = 22458.62 MiB, Mode = 26532 MiB"
    )


def test_without_nvml_a_gpu_that_torch_uses_has_no_telemetry_and_a_warning_says_so(two_gpus, tmp_path, caplog):
    def missing():
        raise two_gpus.NVMLError_LibraryNotFound("no NVML")

    two_gpus.nvmlInit = missing
    watch(tmp_path, 3600)
    assert caplog.text.count("no telemetry of GPUs: no NVML") == 1
    assert rows(tmp_path / "gpu-n1.csv") == []


# An NVML without a driver, and what records the telemetry of a script and reads it.
NO_DRIVER = """
class NVMLError_LibraryNotFound(Exception): pass
def nvmlInit(): raise NVMLError_LibraryNotFound
"""
RECORDS = """
import sys
from trainyard.scaling import user_script, node_step
from trainyard.cluster import telemetry
with telemetry.visible_gpus() as gpus:
    print(gpus, "torch" in sys.modules)
"""


def test_a_script_on_cpus_is_launched_and_watched_without_importing_torch(tmp_path):
    (tmp_path / "pynvml.py").write_text(NO_DRIVER)
    path = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT / 'scripts'}"}
    done = subprocess.run([sys.executable, "-c", RECORDS], env=path, text=True, capture_output=True, check=True)
    assert (done.stdout, done.stderr) == ("[] False\n", "")


def test_a_gpu_that_falls_off_the_bus_ends_its_telemetry_but_not_that_of_the_cpus(two_gpus, tmp_path, caplog):
    def gone(handle):
        raise RuntimeError("GPU is lost")

    two_gpus.nvmlDeviceGetMemoryInfo = gone
    watch(tmp_path, 3600)
    assert caplog.text.count("GPU telemetry stops: GPU is lost") == 1
    assert len(rows(tmp_path / "cpu-n1.csv")) == 2, "at the beginning and at the end"


def test_values_that_nvml_refuses_are_empty_and_the_others_are_recorded(two_gpus, tmp_path, caplog):
    """Some sites forbid users to read the utilization, and a part of a GPU (MIG) has none."""

    def forbidden(handle):
        raise two_gpus.NVMLError_NoPermission

    two_gpus.nvmlDeviceGetUtilizationRates = forbidden
    watch(tmp_path, 3600)
    assert "stops" not in caplog.text
    assert [row["utilization_percent"] for row in rows(tmp_path / "gpu-n1.csv")] == [""] * 4
    assert {row["memory_total_mib"] for row in rows(tmp_path / "gpu-n1.csv")} == {"141000"}


def test_the_complete_rows_of_a_truncated_file_are_read(tmp_path):
    watch(tmp_path, 3600)
    path = tmp_path / "cpu-n1.csv"
    path.write_text(path.read_text()[:-4])
    assert peak_resident_mib(tmp_path) > 0


def test_a_full_disk_ends_telemetry_with_whole_rows_and_not_the_training(small_disk, caplog):
    path, head = small_disk.folder / "cpu-n1.csv", ",".join(CPU_COLUMNS) + "\n"
    before = head + "1730000000,99.5,1234.5,".ljust(4090 - len(head), "1") + "\n"  # in a page of 4096 bytes
    path.write_text(before)
    (small_disk.folder / "gpu-n1.csv").write_text("its header\n")
    small_disk.fill()
    watch(small_disk.folder, overwrite=False)
    assert "telemetry stops: " in caplog.text
    assert path.read_text() == before
    watch(small_disk.folder / "new")
    assert "no telemetry: " in caplog.text
    assert "new: no space left on device: make room" in caplog.text
