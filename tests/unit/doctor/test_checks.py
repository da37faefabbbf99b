"""What the doctor makes of a site: each finding passes, fails with a remedy, or says that it cannot know."""

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


def request(*options, code="0", answer=YES):
    line = ["--parsable", "--comment", "rule_sweep_wildcards_depth", "--nodes=1", "--cpus-per-task=2", *options]
    return sbatch_rehearsal.parse(code, answer, *line)


@pytest.mark.parametrize(
    ("text", "minutes"),
    [("30:00", 30), ("4:00:00", 240), ("1-00:00:00", 1440), ("2-12:30:30", 3630.5), ("infinite", float("inf"))],
)
def test_a_time_limit_is_read(text, minutes):
    assert slurm_queries.parse_time_limit(text) == minutes


def test_a_partition_is_said_in_words():
    assert str(GPU) == (
        "gpu (4 nodes of 8 CPUs and 16000 MB, walltime at most 1-00:00:00, gpu:a100:2, features nvlink,ib)"
    )
    assert str(CPU) == "cpu (12 nodes of 64+ CPUs and 190000+ MB, walltime at most infinite, no GPUs)"
    assert CLOSED.gpus == "gpu:v100:4"


REQUESTS = [
    (request("-t", "60"), "ok", "1 node, 2 CPUs, ? MB, 60 min, partition gpu; could start 2026-11-21 03:12:36"),
    (request("-t", "1440", "--gres=gpu:a100:2"), "ok", "2 a100 GPUs a node"),
    (request("-t", "1441"), "fails", "longer than gpu allows, 1-00:00:00"),
    (request("-t", "99999", "-p", "cpu"), "ok", "partition cpu"),
    (request("-t", "60", "-p", "gpus"), "fails", "there is no partition 'gpus'"),
    (request("-t", "60", "-p", "old"), "fails", "partition old is not up"),
    (request("-t", "60", "--gpus=h100:3", code="1", answer=NO), "fails", f"3 h100 GPUs a node, ? MB, 60 min: {NO}"),
    (request("-t", "60", "-C", "x", code="1", answer="Invalid feature"), "fails", "constraint x: Invalid feature"),
]


@pytest.mark.parametrize(("asked", "verdict", "words"), REQUESTS)
def test_a_request_is_held_against_the_partitions(asked, verdict, words):
    found = checks.check_request(asked, PARTITIONS)
    assert (found.name, found.verdict) == ("sweep depth", verdict)
    assert words in found.words
    assert bool(found.remedy) == (verdict == "fails")


KNOWN = [
    slurm_queries.Association(account="lab", qos=("normal", "long")),
    slurm_queries.Association(account="other", qos=("normal",)),
]
ACCOUNTS = [
    ([], "ok", "the user's default", ""),
    (["-A", "lab", "--qos=long"], "ok", "lab; QoS long", ""),
    (["-A", "labb"], "fails", "labb: no account of me", "one of: lab, other"),
    (["-A", "other", "--qos=long"], "fails", "QoS long is not allowed here", "one of: normal"),
]


@pytest.mark.parametrize(("options", "verdict", "words", "remedy"), ACCOUNTS)
def test_an_account_is_held_against_the_users_own(options, verdict, words, remedy):
    found = checks.check_account([request("-t", "1", *options)], lambda: KNOWN, "me")
    assert found.verdict == verdict
    assert words in found.words
    assert remedy in found.remedy


def test_without_accounting_an_account_cannot_be_known():
    def none():
        raise UserError("`sacctmgr` failed: accounting storage is disabled")

    assert checks.check_account([request("-A", "lab")], none, "me").verdict == "unknown"


GOOD = {
    "node": "n1",
    "given": "Slurm job 7 on n1, n2; GPUs per node: 1 a100, CPUs per node: 1",
    "nonce": "right",
    "tmp_gib": 50.0,
    "gpus_given": 1,
    "driver": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.1",
    "interface": ["n2", "ib0"],
    "python": "3.12.1",
    "torch": "2.11.0",
    "cuda": "12.8",
    "ray": "2.60.0",
    "devices": ["NVIDIA A100-SXM4-80GB"],
}
# What a node answers beside that, which finding it is about, and what the finding says.
ANSWERS = [
    ({}, "GPU", "ok", "torch sees NVIDIA A100-SXM4-80GB; CUDA 12.8"),
    ({}, "network", "ok", "ib0 leads to n2"),
    ({"interface": []}, "network", "ok", "no job of the config has several nodes"),
    ({"interface": ["n2", "lo"]}, "network", "fails", "no interface leads to n2"),
    ({"nonce": "wrong"}, "shared files", "fails", "n1 sees another folder"),
    ({"tmp_gib": 0.2}, "local disk", "fails", "0.2 GiB free in /tmp"),
    ({"devices": []}, "GPU", "fails", "it is built for CUDA 12.8, and the node has NVRM version"),
    ({"devices": [], "cuda": None}, "GPU", "fails", "is built without CUDA"),
    ({"devices": [], "driver": ""}, "GPU", "fails", "the node has no NVIDIA driver"),
    ({"gpus_given": 0}, "GPU", "unknown", "no job of the config asks for one"),
    ({"import_error": "ImportError: libcuda"}, "Python", "fails", "libcuda"),
]


@pytest.mark.parametrize(("changes", "name", "verdict", "words"), ANSWERS)
def test_a_nodes_answer_is_understood(changes, name, verdict, words):
    found = {each.name: each for each in node_probe.describe(GOOD | changes, nonce="right")}
    assert found[name].verdict == verdict
    assert words in found[name].words
    assert verdict != "fails" or found[name].remedy


def test_a_node_where_slurm_does_not_answer_is_told():
    answer = {key: value for key, value in GOOD.items() if key not in ("given", "gpus_given", "interface")}
    found = next(node_probe.describe(answer | {"slurm_error": "no scontrol"}, nonce="right"))
    assert (found.verdict, found.words) == ("fails", "n1: no scontrol")


def test_a_check_that_goes_wrong_is_a_finding():
    def broken():
        raise ZeroDivisionError("planned")

    assert next(checks.guarded("x", broken)).verdict == "unknown"
