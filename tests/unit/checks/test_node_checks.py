"""What the doctor's job reports from nodes, and the findings that follow."""

from dataclasses import replace

import pytest
from trainyard.checks import node_checks
from trainyard.checks.node_checks import check_nodes
from trainyard.checks.node_probe import JobReport, NodeReport
from trainyard.checks.sbatch_requests import parse_request

NODE = NodeReport(
    node="n1",
    python="3.12.1",
    nonce="right",
    lock="in use by process 7 on login",
    lock_held=True,
    tmp="/scratch",
    tmp_gib=50.0,
    tmp_executes=True,
    cpus=8,
    machine_cpus=64,
    driver="NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1",
    torch="2.11.0",
    cuda="12.8",
    ray="2.60.0",
    devices=["A100", "A100"],
)
OTHER = replace(NODE, node="n2")
JOB = JobReport(
    allocation="Slurm job 7 on n1, n2; GPUs per node: 2 a100, CPUs per node: 8",
    nodes=["n1", "n2"],
    cpus_per_node=8,
    gpus_per_node=2,
    meeting={"address": "10.0.0.1", "interface": "ib0", "backends": "nccl and gloo"},
    ray="started on n1, n2, ran a task and ended in 9 s",
    has_ended=True,
)
LOCAL = "a file that this machine has locked can be locked on n2"
# What a second node, or the job, reports instead, and the finding about it.
FINDINGS = [
    ({}, {}, "node", "ok", "Slurm job 7 on n1, n2"),
    ({}, {}, "shared files", "ok", "read and written on n1, n2"),
    ({"nonce": "wrong"}, {}, "shared files", "fails", "n2: another folder"),
    ({}, {}, "locks", "ok", "a lock of this machine holds"),
    ({"lock": "", "lock_held": False}, {}, "locks", "warns", LOCAL),
    ({"lock": "no locks available", "lock_held": False}, {}, "locks", "fails", "no locks available"),
    ({}, {}, "claims", "ok", "the nodes agree on the order of hard links"),
    ({"claims": "no hard links"}, {}, "claims", "fails", "no hard links"),
    ({}, {}, "temporary files", "ok", "n1, n2: 50.0 GiB free in /scratch"),
    ({"tmp_gib": 0.2}, {}, "temporary files", "fails", "n2: 0.2 GiB free in /scratch"),
    ({"tmp_executes": False}, {}, "temporary files", "warns", "n2: 50.0 GiB free in /scratch, which forbids execution"),
    ({}, {}, "CPUs", "ok", "n1, n2: a step can use its 8"),
    ({"cpus": 1}, {}, "CPUs", "fails", "n2: a step is bound to 1 of its 8"),
    ({"cpus": 2, "machine_cpus": 2}, {}, "CPUs", "ok", "n2: a step can use its 2"),
    ({}, {}, "Python", "ok", "Python 3.12.1, torch 2.11.0, Ray 2.60.0"),
    ({"import_error": "ImportError: libcuda"}, {}, "Python", "fails", "n2: 3.12.1: ImportError: libcuda"),
    ({"torch": ""}, {}, "Python", "ok", "Python 3.12.1, torch (not installed), Ray 2.60.0"),
    ({"torch": "", "devices": []}, {}, "GPU", "unknown", "n2: 2 allocated, and not tried: torch is not installed"),
    ({"torch": ""}, {"meeting": {}}, "network", "unknown", "the nodes did not meet: torch is not installed"),
    ({}, {}, "GPU", "ok", "n1, n2: torch computes on 2 A100; CUDA 12.8"),
    ({"devices": ["A100"]}, {}, "GPU", "fails", "n2: torch computes on 1 of 2; it finds no others"),
    ({"devices": [], "device_error": "GPU 0: ECC"}, {}, "GPU", "fails", "n2: torch computes on 0 of 2; GPU 0: ECC"),
    ({"devices": []}, {}, "GPU", "fails", "finds none of 2; it is built for CUDA 12.8, and the node has NVRM version"),
    ({"devices": [], "cuda": None}, {}, "GPU", "fails", "is built without CUDA"),
    ({"devices": [], "driver": ""}, {}, "GPU", "fails", "n2: Slurm allocated 2, but there is no NVIDIA driver"),
    ({}, {"gpus_per_node": 0}, "GPU", "ok", "no job of the config requests one"),
    ({}, {}, "network", "ok", "n2 reached n1 at 10.0.0.1 through ib0; all-reduce with nccl and gloo"),
    ({}, {"nodes": ["n1"]}, "network", "ok", "no job of the config has several nodes"),
    ({}, {"meeting": {}, "meeting_error": "n2 did not start"}, "network", "fails", "n2 did not start"),
    ({}, {"meeting": {}}, "network", "fails", "the job ended before the nodes met"),
    ({}, {"ray": "", "ray_error": "no port"}, "Ray", "fails", "no port"),
    ({}, {"nodes": ["n1", "n2", "n3"], "step_error": "killed"}, "node", "fails", "no report from n3: killed"),
    ({}, {"allocation": "", "slurm_error": "no scontrol"}, "node", "fails", "no scontrol"),
]


@pytest.mark.parametrize(("node", "job", "name", "verdict", "message"), FINDINGS)
def test_reports_become_findings(node, job, name, verdict, message):
    found = list(check_nodes(replace(JOB, **job), [NODE, replace(OTHER, **node)], nonce="right", lock_error=""))
    matching = [each for each in found if each.name == name and message in each.message]
    assert [each.verdict for each in matching] == [verdict], found
    assert verdict == "ok" or matching[0].remedy


def test_a_file_system_without_locks_is_reported():
    found = {each.name: each for each in check_nodes(JOB, [NODE, OTHER], nonce="right", lock_error="no locks")}
    assert (found["locks"].verdict, found["locks"].message) == ("fails", "no locks")


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
