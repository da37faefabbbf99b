"""The doctor's findings about a site: each one passes, fails with a remedy, or cannot know."""

from dataclasses import replace

import pytest
from trainyard.cluster import slurm_queries
from trainyard.doctor import checks, node_probe, sbatch_rehearsal
from trainyard.utils.errors import UserError

# As `sinfo --noheader --format '%P|%a|%l|%D|%c|%m|%G|%f'` prints them; the first two by Slurm 22.05.
GPU = slurm_queries.parse_partition("gpu*|up|1-00:00:00|4|8|16000|gpu:a100:2|nvlink,ib")
CPU = slurm_queries.parse_partition("cpu|up|infinite|12|64+|190000+|(null)|(null)")
CLOSED = slurm_queries.parse_partition("old|down|4:00:00|2|16|64000|gpu:v100:4(S:0-1)|(null)")
PARTITIONS = [GPU, CPU, CLOSED]
YES = "sbatch: Job 12 to start at 2026-11-21T03:12:36 using 1 processors on nodes n1 in partition gpu"
NO = "allocation failure: Requested node configuration is not available"


def request(*options, code="0", response=YES):
    line = ["--parsable", "--comment", "rule_sweep_wildcards_depth", "--nodes=1", "--cpus-per-task=2", *options]
    return sbatch_rehearsal.parse_request(code, response, *line)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30:00", 30), ("4:00:00", 240), ("1-00:00:00", 1440), ("2-12:30:30", 3630.5), ("infinite", float("inf"))],
)
def test_a_time_limit_is_parsed(text, minutes):
    assert slurm_queries.parse_time_limit(text) == minutes


def test_a_partition_is_described():
    assert str(GPU) == (
        "gpu (4 nodes of 8 CPUs and 16000 MB, walltime at most 1-00:00:00, gpu:a100:2, features nvlink,ib)"
    )
    assert str(CPU) == "cpu (12 nodes of 64+ CPUs and 190000+ MB, walltime at most infinite, no GPUs)"
    assert CLOSED.gpus == "gpu:v100:4"


REQUESTS = [
    (request("-t", "60"), "ok", "1 node, 2 CPUs, ? MB, 60 min, partition gpu; could start 2026-11-21 03:12:36"),
    (request("-t", "1440", "--gres=gpu:a100:2"), "ok", "2 a100 GPUs per node"),
    (request("-t", "1441"), "fails", "above the limit of gpu, 1-00:00:00"),
    (request("-t", "99999", "-p", "cpu"), "ok", "partition cpu"),
    (request("-t", "60", "-p", "gpus"), "fails", "there is no partition 'gpus'"),
    (request("-t", "60", "-p", "old"), "fails", "partition old is not up"),
    (request("-t", "60", "--gpus=h100:3", code="1", response=NO), "fails", f"3 h100 GPUs per node, ? MB, 60 min: {NO}"),
    (request("-t", "60", "-C", "x", code="1", response="Invalid feature"), "fails", "constraint x: Invalid feature"),
]


@pytest.mark.parametrize(("asked", "verdict", "message"), REQUESTS)
def test_a_request_is_checked_against_the_partitions(asked, verdict, message):
    found = checks.check_request(asked, PARTITIONS)
    assert (found.name, found.verdict) == ("sweep depth", verdict)
    assert message in found.message
    assert bool(found.remedy) == (verdict == "fails")


KNOWN = [
    slurm_queries.Association(account="lab", qos=("normal", "long")),
    slurm_queries.Association(account="other", qos=("normal",)),
]
ACCOUNTS = [
    ([], "ok", "the user's default", ""),
    (["-A", "lab", "--qos=long"], "ok", "lab; QoS long", ""),
    (["-A", "labb"], "fails", "labb: no account of me", "one of: lab, other"),
    (["-A", "other", "--qos=long"], "fails", "QoS long is not allowed", "one of: normal"),
]


@pytest.mark.parametrize(("options", "verdict", "message", "remedy"), ACCOUNTS)
def test_an_account_is_checked_against_the_users_accounts(options, verdict, message, remedy):
    found = checks.check_account([request("-t", "1", *options)], lambda: KNOWN, "me")
    assert found.verdict == verdict
    assert message in found.message
    assert remedy in found.remedy


def test_without_accounting_an_account_cannot_be_known():
    def none():
        raise UserError("`sacctmgr` failed: accounting storage is disabled")

    assert checks.check_account([request("-A", "lab")], none, "me").verdict == "unknown"


GOOD = node_probe.NodeReport(
    node="n1",
    python="3.12.1",
    nonce="right",
    tmp_gib=50.0,
    driver="NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1",
    allocation="Slurm job 7 on n1, n2; GPUs per node: 1 a100, CPUs per node: 1",
    allocated_gpus=1,
    other_node="n2",
    interface="ib0",
    torch="2.11.0",
    cuda="12.8",
    ray="2.60.0",
    devices=["NVIDIA A100-SXM4-80GB"],
)
# What a node reports instead, and the finding about it.
REPORTS = [
    ({}, "GPU", "ok", "torch finds NVIDIA A100-SXM4-80GB; CUDA 12.8"),
    ({}, "network", "ok", "ib0 reaches n2"),
    ({"other_node": "", "interface": ""}, "network", "ok", "no job of the config has several nodes"),
    ({"interface": "lo"}, "network", "fails", "no interface reaches n2"),
    ({"nonce": "wrong"}, "shared files", "fails", "n1 has another folder"),
    ({"tmp_gib": 0.2}, "local disk", "fails", "0.2 GiB free in /tmp"),
    ({"devices": []}, "GPU", "fails", "it is built for CUDA 12.8, and the node has NVRM version"),
    ({"devices": [], "cuda": None}, "GPU", "fails", "is built without CUDA"),
    ({"devices": [], "driver": ""}, "GPU", "fails", "the node has no NVIDIA driver"),
    ({"allocated_gpus": 0}, "GPU", "unknown", "no job of the config requests one"),
    ({"import_error": "ImportError: libcuda"}, "Python", "fails", "libcuda"),
    ({"allocation": "", "slurm_error": "no scontrol"}, "node", "fails", "n1: no scontrol"),
]


@pytest.mark.parametrize(("changes", "name", "verdict", "message"), REPORTS)
def test_a_nodes_report_becomes_findings(changes, name, verdict, message):
    findings = {each.name: each for each in node_probe.interpret(replace(GOOD, **changes), nonce="right")}
    assert findings[name].verdict == verdict
    assert message in findings[name].message
    assert verdict != "fails" or findings[name].remedy


def test_a_report_is_written_where_slurm_and_the_folder_are_missing(tmp_path, monkeypatch):
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    node_probe.write_report(tmp_path)
    report = node_probe._read_report(tmp_path)
    verdicts = {each.name: each.verdict for each in node_probe.interpret(report, nonce="right")}
    assert verdicts["node"] == verdicts["shared files"] == "fails"
    assert verdicts["Python"] == "ok"


def test_a_check_that_raises_is_a_finding():
    def broken():
        raise ZeroDivisionError("planned")

    assert next(checks.catch_errors("x", broken)).verdict == "unknown"
