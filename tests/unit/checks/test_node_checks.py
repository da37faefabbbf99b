"""What the doctor's job reports from nodes, and the findings that follow."""

import os
import platform
import subprocess
import sys
import tempfile
from collections import namedtuple
from dataclasses import replace
from types import SimpleNamespace

import pytest
from trainyard.checks import node_checks, node_probe
from trainyard.checks.findings import Finding
from trainyard.checks.node_checks import merge_findings
from trainyard.checks.node_probe import JobReport
from trainyard.checks.sbatch_requests import parse_request
from trainyard.cluster import slurm_allocation
from trainyard.utils.errors import StorageError

JOB = JobReport(
    allocation="Slurm job 7 on n1, n2; GPUs per node: 2 a100, CPUs per node: 8",
    nodes=["n1", "n2"],
    cpus_per_node=8,
    gpus_per_node=2,
    findings=[Finding("Ray", "ok", "started on n1, ran a task and ended in 9 s")],
    has_ended=True,
)
FITS, SMALL = Finding("CPUs", "ok", "a step can use its 8"), Finding("CPUs", "fails", "a step is bound to 1 of its 8")
BOTH = {"n1": [FITS], "n2": [FITS]}


@pytest.mark.parametrize(
    ("job", "nodes", "found"),
    [
        ({}, BOTH, [("node", "ok", JOB.allocation), ("CPUs", "ok", f"n1, n2: {FITS.message}"),
                    ("Ray", "ok", JOB.findings[0].message)]),
        ({}, {"n1": [FITS], "n2": [SMALL]}, [("node", "ok", JOB.allocation), ("CPUs", "ok", f"n1: {FITS.message}"),
                                             ("CPUs", "fails", f"n2: {SMALL.message}"),
                                             ("Ray", "ok", JOB.findings[0].message)]),
        ({"findings": [], "step_error": "killed"}, {"n1": []}, [("node", "fails", "no report from n2: killed")]),
        ({"findings": [], "has_ended": False}, {"n1": [], "n2": []}, [
            ("node", "ok", JOB.allocation),
            ("node", "fails", "the job ended before it had checked all: see its output, job.log")]),
        ({"allocation": "", "nodes": []}, {}, [("Ray", "ok", JOB.findings[0].message)]),
    ],
)  # fmt: skip
def test_the_reports_of_nodes_become_findings_about_the_job(job, nodes, found):
    findings = list(merge_findings(replace(JOB, **job), nodes))
    assert [(each.name, each.verdict, each.message) for each in findings] == found


@pytest.mark.parametrize(
    ("gib", "program", "verdict", "message"),
    [
        (50.0, 0, "ok", "50.0 GiB free in"),
        (0.2, 0, "fails", "0.2 GiB free in"),
        (50.0, 1, "warns", "which forbids execution"),
    ],
)
def test_a_temporary_folder_needs_space_and_executes_programs(tmp_path, monkeypatch, gib, program, verdict, message):
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(node_probe.shutil, "disk_usage", lambda folder: usage(0, 0, gib * 2**30))
    monkeypatch.setattr(subprocess, "run", lambda line, check: SimpleNamespace(returncode=program))
    found = node_probe.check_temporary_folder()
    assert (found.name, found.verdict) == ("temporary files", verdict)
    assert message in found.message


@pytest.mark.parametrize(
    ("available", "machine", "verdict", "message"),
    [
        (8, 64, "ok", "a step can use its 8"),
        (1, 64, "fails", "a step is bound to 1 of its 8"),
        (2, 2, "ok", "a step can use its 2"),
    ],
)
def test_a_step_that_is_bound_to_fewer_cpus_is_found(monkeypatch, available, machine, verdict, message):
    monkeypatch.setattr(slurm_allocation, "available_cpus", lambda: available)
    monkeypatch.setattr(os, "cpu_count", lambda: machine)
    found = node_probe.check_cpus(8)
    assert (found.verdict, found.message) == (verdict, message)


class Torch:
    """A torch that finds these GPUs, of which the last one may fail."""

    __version__ = "2.11.0"

    def __init__(self, names=("A100", "A100"), cuda="12.8", fails=False):
        self.version = SimpleNamespace(cuda=cuda)
        self.cuda = SimpleNamespace(device_count=lambda: len(names), get_device_name=names.__getitem__)
        self._broken = f"cuda:{len(names) - 1}" if fails else None

    def ones(self, count, device):
        if device == self._broken:
            raise RuntimeError("ECC")
        return SimpleNamespace(sum=lambda: SimpleNamespace(item=lambda: count))


DRIVER = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1"
MISSING = "2 allocated, and not tried: torch is not installed"
NO_DRIVER = "Slurm allocated 2, but there is no NVIDIA driver: training would run on the CPU"
NO_GPU = "torch finds none of 2; it is built"


@pytest.mark.parametrize(
    ("torch", "driver", "verdict", "message"),
    [
        (Torch(), DRIVER, "ok", "torch computes on 2 A100; CUDA 12.8"),
        (Torch(["A100"]), DRIVER, "fails", "torch computes on 1 of 2; it finds no others"),
        (Torch(fails=True), DRIVER, "fails", "torch computes on 1 of 2; GPU 1: RuntimeError: ECC"),
        (Torch([]), DRIVER, "fails", f"{NO_GPU} for CUDA 12.8, and the node has {DRIVER}"),
        (Torch([], cuda=None), DRIVER, "fails", f"{NO_GPU} without CUDA, and the node has {DRIVER}"),
        (Torch([]), "", "fails", NO_DRIVER),
        (None, DRIVER, "unknown", MISSING),
        (None, "", "fails", NO_DRIVER),
    ],
)
def test_torch_computes_on_all_gpus_of_a_node_or_it_is_said_why_not(
    tmp_path, monkeypatch, torch, driver, verdict, message
):
    monkeypatch.setattr(node_probe, "NVIDIA_DRIVER", tmp_path / "version")
    if driver:
        (tmp_path / "version").write_text(f"{driver}\nGCC\n")
    monkeypatch.setitem(sys.modules, "torch", torch)
    monkeypatch.setattr(node_probe.importlib.util, "find_spec", lambda name: torch)
    python, gpu = node_probe.check_libraries(2)
    version = "2.11.0" if torch else "(not installed)"
    assert python.message.startswith(f"Python {platform.python_version()}, torch {version}, Ray ")
    assert (gpu.name, gpu.verdict, gpu.message) == ("GPU", verdict, message)


def test_without_gpus_or_ray_nothing_computes(monkeypatch):
    assert list(node_probe.check_libraries(0))[1].message == "not needed: no job of the config requests one"
    monkeypatch.setitem(sys.modules, "ray", None)
    (python,) = node_probe.check_libraries(2)
    assert (python.name, python.verdict) == ("Python", "fails")
    assert "ModuleNotFoundError: import of ray halted" in python.message


def test_a_file_system_without_locks_is_reported_and_no_job_is_submitted(tmp_path, monkeypatch):
    def refuse(path):
        raise StorageError("no locks")

    monkeypatch.setattr(node_checks, "hold", refuse)
    (found,) = node_checks.probe_nodes([], tmp_path / "results", wait_minutes=1, notify=print)
    assert (found.name, found.verdict, found.message) == ("locks", "fails", "no locks")


def test_the_wait_for_the_job_goes_on_while_slurm_does_not_respond(tmp_path, slurm, monkeypatch):
    (tmp_path / "answers").write_text("1 Socket timed out\n0 PENDING: Resources\n1 Socket timed out\n0 RUNNING: None\n")
    answer = (
        f"read code said < {tmp_path}/answers || exit 0; sed -i 1d {tmp_path}/answers"  # then it has left the queue
    )
    slurm.runs("squeue", f'{answer}; if [ "$code" = 0 ]; then echo "$said"; else echo "$said" >&2; exit 1; fi')
    slurm.prints("sbatch", "7;cluster")
    slurm.prints("scancel", "")
    monkeypatch.setattr(node_checks, "POLL_SECONDS", 0)
    said, like = [], parse_request("train s 2x1", "sbatch --nodes=2 --cpus-per-task=2", accepted=True, response="")
    [finding] = node_checks.probe_nodes([like], tmp_path / "results", wait_minutes=1, notify=said.append)
    assert said[0].startswith("submitted job 7: sbatch --parsable ")
    assert said[1:] == ["job 7 is PENDING: Resources", "job 7 is RUNNING"]
    assert finding.verdict == "fails"
    assert finding.message.startswith("job 7 wrote no report into ")
