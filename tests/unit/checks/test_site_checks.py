"""The doctor's findings about a site: each one passes, fails with a remedy, or cannot know."""

import shlex
from types import SimpleNamespace

import pytest
from trainyard.checks import findings, sbatch_requests, site_checks, storage
from trainyard.cluster import slurm_queries
from trainyard.cluster.slurm_limits import Limits

# As `sinfo --noheader --format '%P|%a|%l|%D|%c|%m|%G|%f'` prints them; the first two by Slurm 22.05.
GPU = slurm_queries.parse_partition("gpu*|up|1-00:00:00|4|8|16000|gpu:a100:2|nvlink,ib")
CPU = slurm_queries.parse_partition("cpu|up|infinite|12|64+|190000+|(null)|(null)")
CLOSED = slurm_queries.parse_partition("old|down|4:00:00|2|16|64000|gpu:v100:4(S:0-1)|(null)")
PARTITIONS = [GPU, CPU, CLOSED]
YES = "sbatch: Job 12 to start at 2026-11-21T03:12:36 using 1 processors on nodes n1 in partition gpu"
FULL = (
    "sbatch: error: AssocMaxSubmitJobLimit allocation failure: Job violates accounting/QOS policy (job submit limit, "
    "user's size and/or time limits)"
)
NO = "allocation failure: Requested node configuration is not available"


def request(*options, code="0", response=YES):
    line = ["sbatch", "--parsable", "--nodes=1", "--cpus-per-task=2", *options]
    return sbatch_requests.parse_request("sweep depth", shlex.join(line), accepted=code == "0", response=response)


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
    (request("-t", "abc", code="1", response="Invalid --time"), "fails", "? min: Invalid --time"),
    (request("-t", "60", code="1", response=FULL), "warns", "refuses it for now (AssocMaxSubmitJobLimit)"),
]


@pytest.mark.parametrize(("asked", "verdict", "message"), REQUESTS)
def test_a_request_is_checked_against_the_partitions(asked, verdict, message):
    found = site_checks.check_request(asked, PARTITIONS)
    assert (found.name, found.verdict) == ("sweep depth", verdict)
    assert message in found.message
    assert bool(found.remedy) == (verdict != "ok")


def test_the_accounts_of_a_user_are_named_with_their_qualities_of_service(slurm):
    slurm.prints("sacctmgr", "lab|normal,long\nother|normal")
    (found,) = site_checks.check_accounting(SimpleNamespace(user="me"))
    assert found.message == "accounts of me: lab (QoS normal, long), other (QoS normal)"


LONG = Limits(
    origin="QOS long",
    amounts={"minutes of walltime": 120, "jobs in the queue": 2, "gres/gpu per job": 2, "gres/gpu:a100 in all jobs": 3},
)
ACCOUNT = Limits("account lab", {"minutes of walltime": 30, "node per job": 1, "mem in all jobs": 9000})
TOTAL = Limits("QOS long", {"gres/gpu:a100 in all jobs": 3})
LIMITS = [
    (["-t", "120", "--gres=gpu:a100:2"], [LONG, ACCOUNT], "ok", "at most 2 jobs in the queue, at most 120 minutes of"),
    (["-t", "121"], [LONG, ACCOUNT], "fails", "sweep depth: 121 minutes of walltime, but QOS long allows 120"),
    (["-t", "31"], [ACCOUNT], "fails", "31 minutes of walltime, but account lab allows 30"),
    (["--gres=gpu:4"], [LONG], "fails", "4 gres/gpu per job, but QOS long allows 2"),
    (["--nodes=2", "--gres=gpu:a100:2"], [TOTAL], "fails", "4 gres/gpu:a100 in all jobs"),
    (["--nodes=2", "--mem=5000"], [LONG, ACCOUNT], "fails", "2 node per job, but account lab allows 1"),
    (["--mem=9001"], [LONG, ACCOUNT], "fails", "9001 mem in all jobs, but account lab allows 9000"),
    (["-t", "9999"], [], "ok", "the site enforces none"),
]


@pytest.mark.parametrize(("options", "levels", "verdict", "message"), LIMITS)
def test_a_job_is_compared_with_the_limits_that_apply(options, levels, verdict, message):
    found = site_checks.compare_limits([request(*options)], [levels])
    assert found.verdict == verdict
    assert message in found.message


def test_with_more_jobs_than_the_queue_takes_some_are_submitted_later():
    found = site_checks.compare_limits([request("-t", "1")] * 3, [[LONG]] * 3)
    assert found.verdict == "ok"
    assert found.message.endswith("so that some of the 3 jobs are submitted later")


@pytest.mark.parametrize(
    ("options", "data_mb", "message"),
    [
        (["--mem=8000", "--gres=gpu:a100:1"], 8000, ""),
        (["--mem=8000", "--gres=gpu:1"], 9000, "8000 MB per node, but its dataset has 9,000 MB"),
        (["--mem=8001", "--gres=gpu:a100:1"], 0, "8001 MB per node, above the share of its 1 GPUs: 8000 MB"),
        (["--mem=9000", "--gpus=a100:2"], 0, ""),
        (["--mem=16000"], 0, ""),
        ([], 9000, ""),
        (["--mem=9000", "--gpus=h100:1"], 0, ""),
    ],
)
def test_memory_is_compared_with_the_dataset_and_the_share_of_a_node(options, data_mb, message):
    found = site_checks.judge_memory(request(*options), [GPU], data_mb=data_mb)
    assert (message in found.message) if message else found is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["-t", "1-12:30", "--mem=2G"], "2 CPUs, 2048 MB, 2190 min"),
        (["--time=30:00", "--mem-per-cpu=500M"], "2 CPUs, 1000 MB, 30 min"),
        (["-t", "2-0", "--gpus-per-node=nvidia_a100-sxm4:4"], "4 nvidia_a100-sxm4 GPUs per node, ? MB, 2880 min"),
        (["--gres=shard:1,gpu:3", "--cpus-per-gpu=4"], "12 CPUs, 3 GPUs per node, ? MB, ? min"),
        (["--nodes=2-4"], "2 nodes"),
    ],
)
def test_options_are_read_as_sbatch_takes_them(options, text):
    assert text in str(request(*options))


class PreemptingSite:
    """A site with one partition."""

    requests = [request("-t", "1")]

    def __init__(self, kind, mode, grace=0):
        self.controller = {"PreemptType": kind}
        self.partition_settings = {"gpu": slurm_queries.PartitionSettings("gpu", "", mode, grace)}

    def partition_of(self, _):
        return "gpu"


@pytest.mark.parametrize(
    ("site", "verdict", "message"),
    [
        (("preempt/none", "REQUEUE"), "ok", "partition gpu: jobs are not preempted"),
        (("preempt/partition_prio", "OFF"), "ok", "partition gpu: jobs are not preempted"),
        (
            ("preempt/partition_prio", "REQUEUE", 120),
            "ok",
            "requeued, and continue from their durable state (grace period: 120 s)",
        ),
        (("preempt/partition_prio", "GANG,SUSPEND"), "warns", "jobs take turns"),
        (("preempt/qos", "REQUEUE"), "unknown", "jobs of one QOS may preempt jobs of another"),
    ],
)
def test_preemption_is_described(site, verdict, message):
    (found,) = site_checks.check_preemption(PreemptingSite(*site))
    assert found.verdict == verdict
    assert message in found.message


# As `quota -w -p` and `lfs quota -q` print them; the latter with the device in place of the folder.
QUOTA = """\
Disk quotas for user ann (uid 1000):
     Filesystem  blocks   quota   limit   grace   files   quota   limit   grace
nas:/home 94371840* 52428800 104857600       0  250000  300000  310000       0
nas:/work 94371840       0       0       0  250000       0       0       0
"""
LUSTRE = "ost@tcp:/lfs 1048576 0 3145728 - 2000* 1000 3000 -"


@pytest.mark.parametrize(
    ("output", "device", "gib", "files"),
    [
        (QUOTA, "nas:/home", 0, 50000),
        (QUOTA.replace("52428800", "0"), "nas:/home", 10, 50000),
        (LUSTRE, "ost@tcp:/lfs", 2, 0),
    ],
)
def test_a_quota_is_parsed(output, device, gib, files):
    assert storage.parse_quota(output, device) == storage.Space(gib, files, has_quota=True)


@pytest.mark.parametrize(("output", "device"), [(QUOTA, "nas:/work"), (QUOTA, "nas:/other"), ("", "nas:/home")])
def test_without_a_limit_there_is_no_quota(output, device):
    assert storage.parse_quota(output, device) is None


def test_little_space_fails_for_results_and_warns_for_the_home_folder(small_disk, monkeypatch):
    monkeypatch.setenv("HOME", str(small_disk.folder))
    results = next(storage.check_results(small_disk.folder / "results"))
    assert results.verdict == "fails"
    assert results.message.startswith("0.0 GiB and ")
    assert results.message.endswith(f" files free (no quota found) in {small_disk.folder}")
    assert next(storage.check_home()).verdict == "warns"
    assert str(storage.Space(0.25, 1000, has_quota=True)) == "0.2 GiB and 1,000 files free (of your quota)"


def test_a_check_that_raises_is_a_finding():
    def broken():
        raise ZeroDivisionError("planned")

    assert next(findings.catch_errors("x", broken)).verdict == "unknown"
