"""A sweep over several nodes is one Slurm job with a private Ray, and leaves no process or file."""

import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from project import ROOT, TINY, stage_tiny
from slurm_cluster.cluster import Cluster
from slurm_cluster.waiting import wait_until
from sweep_journals import attempts_in, read_records
from trainyard.cluster.ray.patches import SWITCH

pytestmark = pytest.mark.slow

SWEEP = "results/sweeps/s"
# Each trial records its host and GPU and takes a while; with a file `gated`, it waits for the file `note-<n>-go`.
WITNESS = """
import os, time
from pathlib import Path

def run(config, context):
    note = config["note"]
    seen = f"{os.uname().nodename} {os.environ['CUDA_VISIBLE_DEVICES']}"
    Path(note).write_text(seen)
    time.sleep(config["lasts"])
    while Path(note).with_name("gated").exists() and not Path(note + "-go").exists():
        time.sleep(0.1)
"""


def sweep_config(folder: Path, *, trials: int, seconds: float, nodes: int, gpus: int) -> dict:
    (folder / "witness.py").write_text(WITNESS)
    each = [{"lasts": seconds, "note": str(folder / f"note-{number}")} for number in range(trials)]
    slots = {"nodes": nodes, "gpus_per_node": gpus}
    sweep = {"dataset": "tiny", "function": "witness:run", "trials": each, "slots": slots}
    return {**TINY, "sweeps": {"s": sweep}, "data": {"local": "/tmp"}}


def start(
    cluster: Cluster,
    folder: Path,
    *options: str,
    trials: int,
    seconds: float,
    nodes: int = 2,
    gpus: int = 2,
    after: str = "",
) -> int:
    """Submit a job that runs the sweep followed by the shell code `after`; return its ID."""
    stage_tiny(folder / "results")
    config = sweep_config(folder, trials=trials, seconds=seconds, nodes=nodes, gpus=gpus)
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    program = f"{sys.executable} {ROOT}/scripts/"
    script = f"export PYTHONPATH={folder}\n{program}sweep.py --config config.yaml --sweep s {after}"
    shape = [f"--nodes={nodes}", "--ntasks-per-node=1", f"--cpus-per-task={gpus}", f"--gres=gpu:{gpus}"]
    return cluster.submit(script, *shape, *options, cwd=folder)


def journal_of(folder: Path):
    return attempts_in(folder / SWEEP)


def outcomes(folder: Path):
    return [attempt.outcome for attempt in journal_of(folder)]


def wait_for_running(folder: Path, count: int) -> None:
    wait_until(lambda: outcomes(folder).count("running") == count, what=f"{count} trials to run")


def own_files(cluster: Cluster, folder: Path) -> list[Path]:
    """The files of Ray, including its token, on all hosts and on the shared file system."""
    local = [path for host in cluster.hosts.values() if host.spaces for path in host.path("/tmp").glob("ty-*")]
    return [*local, *folder.rglob("*token*")]


@pytest.fixture(autouse=True)
def nothing_left(cluster, shared_dir):
    """After each test, no process, temporary folder, copy of data or token is left."""
    yield
    wait_until(lambda: not cluster.processes_left(), what="all processes to end")
    assert own_files(cluster, shared_dir) == []


@pytest.mark.parametrize("fast", [True, pytest.param(False, id="without-quick-start")])
def test_twenty_trials_on_two_nodes_are_one_job_and_use_every_gpu(cluster, shared_dir, fast):
    (shared_dir / "gated").touch()
    job = start(cluster, shared_dir, *([] if fast else [f"--export=ALL,{SWITCH}=0"]), trials=20, seconds=0)
    wait_for_running(shared_dir, 4)
    (shared_dir / "gated").unlink()
    ended = cluster.wait_for_job(job)
    output = (shared_dir / f"slurm-{job}.out").read_text()
    assert ended.state == "COMPLETED", output
    assert [other.id for other in cluster.jobs(first=job)] == [job]
    tries = journal_of(shared_dir)
    assert len({attempt.trial for attempt in tries}) == len(tries) == 20
    places = {(attempt.location.node, attempt.location.gpu) for attempt in tries}
    assert len(places) == 4, "two GPUs on each of two nodes"
    assert len({node for node, _ in places}) == 2
    assert {attempt.location.job for attempt in tries} == {str(job)}
    copies = [event["copy"].split(":")[0] for event in read_records(shared_dir / SWEEP) if event.get("copy")]
    assert sorted(copies) == ["copied tiny to n1", "copied tiny to n2"], "once per node"
    seen = {tuple((shared_dir / f"note-{number}").read_text().split()) for number in range(20)}
    assert seen == places, "a trial sees only its own GPU"


def test_two_sweeps_on_the_same_nodes_are_independent(cluster, shared_dir):
    """Each has one of the two GPUs of n1 and of n2, so that two Rays run on both nodes at the same time."""
    folders = [shared_dir / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
        (folder / "gated").touch()
    jobs = [start(cluster, folder, "--nodelist=n1,n2", trials=4, seconds=0, gpus=1) for folder in folders]
    for folder in folders:
        wait_for_running(folder, 2)
    for folder in folders:
        (folder / "gated").unlink()
    for job, folder in zip(jobs, folders, strict=True):
        ended = cluster.wait_for_job(job)
        assert ended.state == "COMPLETED", (folder / f"slurm-{job}.out").read_text()
        assert outcomes(folder) == ["finished"] * 4
        assert {attempt.location.job for attempt in journal_of(folder)} == {str(job)}
    first, second = (journal_of(folder) for folder in folders)
    gpus = [{(attempt.location.node, attempt.location.gpu) for attempt in tries} for tries in (first, second)]
    assert len(gpus[0] | gpus[1]) == 4, "no GPU is used by both"


def test_ray_requires_its_token_and_a_cancelled_sweep_continues(cluster, shared_dir):
    (shared_dir / "gated").touch()
    job = start(cluster, shared_dir, "--nodelist=n1,n2", trials=8, seconds=0)
    wait_for_running(shared_dir, 4)
    for path in own_files(cluster, shared_dir):
        assert path.stat().st_mode & 0o077 == 0, "nobody else can read the token"
    check_token_is_required(cluster)

    for number in range(2):
        (shared_dir / f"note-{number}-go").touch()
    wait_until(lambda: outcomes(shared_dir).count("finished") == 2, what="two trials to finish")
    wait_for_running(shared_dir, 4)
    cluster.run(["scancel", str(job)])
    cluster.wait_for_job(job, state="CANCELLED")
    wait_until(lambda: not cluster.processes_left(), what="all processes to end")
    assert own_files(cluster, shared_dir) == []
    before = journal_of(shared_dir)
    assert outcomes(shared_dir) == ["finished"] * 2 + ["interrupted"] * 4, "the driver records interruptions"

    (shared_dir / "gated").unlink()
    again = start(cluster, shared_dir, trials=8, seconds=0)
    assert cluster.wait_for_job(again).state == "COMPLETED"
    after = journal_of(shared_dir)[len(before) :]
    assert [attempt.outcome for attempt in after] == ["finished"] * 6
    assert {attempt.trial for attempt in before[:2]}.isdisjoint(attempt.trial for attempt in after)


def check_token_is_required(cluster: Cluster) -> None:
    """Ray on n1 refuses connections from n2 without a token and with a wrong one."""
    sockets = cluster.host(1).run(["ss", "--listening", "--tcp", "--numeric", "--processes"]).stdout
    port = re.search(r":(\d+) .*gcs_server", sockets)[1]
    intruder = [sys.executable, "-uc", f"import ray; ray.init(address='10.77.0.1:{port}'); print('connected')"]
    for credentials in ([], ["RAY_AUTH_MODE=token", "RAY_AUTH_TOKEN=0123456789abcdef0123456789abcdef"]):
        command = cluster.host(2).command(["env", *credentials, *intruder])
        with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as trying:
            output = ""
            while "InvalidAuthToken" not in output and (line := trying.stdout.readline()):
                output += line
            trying.kill()  # it retries for a while
        assert "InvalidAuthToken" in output
        assert "connected" not in output


def test_a_driver_that_is_killed_leaves_no_ray_on_any_node(cluster, shared_dir):
    """Its job continues, so that Ray on each node must detect the end of the driver."""
    job = start(cluster, shared_dir, "--nodelist=n1,n2", trials=4, seconds=3600, after="|| sleep 3600")
    wait_for_running(shared_dir, 4)
    session = read_records(shared_dir / SWEEP)[0]
    cluster.host(1).run(["kill", "-KILL", str(session["process"])])
    only = {"bash", "sleep", "slurm_script"}
    wait_until(
        lambda: all(process.name in only for left in cluster.processes_left().values() for process in left),
        what="Ray to end",
    )
    wait_until(lambda: own_files(cluster, shared_dir) == [], what="its files to be removed")
    cluster.run(["scancel", str(job)])
    cluster.wait_for_job(job)


def test_what_runs_on_another_node_ends_with_the_process_that_started_it(cluster, shared_dir):
    """The driver is left, and with it the job."""
    job = start(cluster, shared_dir, "--nodelist=n1,n2", trials=2, seconds=3600, gpus=1)
    wait_for_running(shared_dir, 2)
    cluster.host(2).run(["pkill", "-KILL", "-f", "cluster.ray.node"])
    wait_until(lambda: "n2" not in cluster.processes_left(), what="Ray and the trial on n2 to end")
    wait_until(lambda: not list(cluster.host(2).path("/tmp").glob("ty-*")), what="its files to be removed")
    assert "n1" in cluster.processes_left()
    cluster.run(["scancel", str(job)])
    cluster.wait_for_job(job)


def test_the_error_names_a_node_that_cannot_start_ray_and_the_reason(cluster, shared_dir):
    (shared_dir / "sitecustomize.py").write_text(
        "import os, sys\n"
        "if os.uname().nodename == 'n3' and '-c' in sys.orig_argv:\n"  # the command line that starts Ray
        "    print('planned trouble', flush=True); os._exit(1)\n"
    )
    job = start(cluster, shared_dir, "--nodelist=n1,n2,n3", trials=3, seconds=1, nodes=3, gpus=1)
    ended = cluster.wait_for_job(job)
    output = (shared_dir / f"slurm-{job}.out").read_text()
    assert ended.state == "FAILED"
    assert "Ray did not start on n3; the end of" in output
    assert "planned trouble" in output
    assert "Traceback" not in output
