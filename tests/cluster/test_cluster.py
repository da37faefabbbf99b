"""The test cluster behaves like a Slurm cluster of four hosts, and faults can be injected and repaired."""

import signal
import subprocess
import threading
from pathlib import Path

from slurm_cluster.cluster import Cluster
from slurm_cluster.hosts import job_environment
from slurm_cluster.namespaces import Process
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until


def lines_of(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []


def test_four_hosts_are_idle_with_two_gpus_each(cluster: Cluster) -> None:
    shown = cluster.run(["sinfo", "--Node", "--noheader", "--partition=gpu", "--format=%N %T %G"]).stdout
    assert shown.splitlines() == [f"n{k} idle gpu:a100:2" for k in (1, 2, 3, 4)]
    assert cluster.gpus_allocated() == 0
    assert cluster.processes_left() == {}


def test_a_job_on_two_hosts_sees_its_gpus_and_is_accounted_for(cluster: Cluster, shared_dir: Path) -> None:
    script = "srun sh -c 'echo \"$(hostname) $CUDA_VISIBLE_DEVICES\" >> seen'; until test -e go; do sleep 0.1; done"
    job_id = cluster.submit(script, "--nodes=2", "--ntasks-per-node=1", "--gres=gpu:2", cwd=shared_dir)
    wait_until(lambda: len(lines_of(shared_dir / "seen")) == 2, what="both hosts to report")

    assert sorted(lines_of(shared_dir / "seen")) == ["n1 0,1", "n2 0,1"]
    assert cluster.gpus_allocated() == 4
    wait_until(lambda: set(cluster.processes_left()) == {"n1"}, what="only the batch script to be left")

    (shared_dir / "go").touch()
    assert cluster.wait_for_job(job_id).state == "COMPLETED"
    wait_until(lambda: cluster.jobs(job_id)[0].hosts == "n[1-2]", what="both hosts in sacct")
    assert cluster.jobs(job_id)[0].allocated["gres/gpu"] == "4"


def test_the_accounting_knows_a_job_that_has_ended_also_if_its_database_lags(
    cluster: Cluster, shared_dir: Path
) -> None:
    cluster.run(["pkill", "-STOP", "slurmdbd"])
    try:
        job_id = cluster.submit("true", "--gres=gpu:1", cwd=shared_dir)
        assert cluster.wait_until_out_of_queue(job_id) == "COMPLETED"
        go_on = threading.Timer(1, cluster.run, (["pkill", "-CONT", "slurmdbd"],))
        go_on.start()
        assert [job.state for job in cluster.jobs(first=job_id)] == ["COMPLETED"]
        go_on.join()
    finally:
        cluster.run(["pkill", "-CONT", "slurmdbd"])


def test_tmp_is_private_to_a_host_and_the_shared_folder_is_not(cluster: Cluster, shared_dir: Path) -> None:
    script = f"for d in /tmp /dev/shm {shared_dir}; do touch $d/of-$(hostname); done; ls /tmp /dev/shm {shared_dir}"
    for k in (1, 2):
        cluster.host(k).run(["sh", "-ec", script])

    assert sorted(path.name for path in shared_dir.iterdir()) == ["of-n1", "of-n2"]
    for k, other in ((1, 2), (2, 1)):
        for folder in (cluster.host(k).path("/tmp"), cluster.host(k).path("/dev/shm")):
            assert (folder / f"of-n{k}").exists()
            assert not (folder / f"of-n{other}").exists()
    assert not Path("/tmp/of-n1").exists()


STUBBORN_STEP = """
echo ${SLURM_RESTART_COUNT:-0} >> started
srun bash -c 'trap "echo TERM >> signals" TERM; while :; do sleep 0.1; done'
"""


def test_a_job_on_preempt_is_signaled_ended_and_requeued(cluster: Cluster, shared_dir: Path) -> None:
    where = ["--nodes=4", "--ntasks-per-node=1", "--gres=gpu:2"]
    lesser = cluster.submit(STUBBORN_STEP, "--partition=preempt", "--requeue", *where, cwd=shared_dir)
    wait_until(lambda: len(cluster.processes_left()) == 4, what=f"job {lesser} to run on all hosts")

    greater = cluster.submit("true", *where, cwd=shared_dir)
    assert cluster.wait_for_job(greater).state == "COMPLETED"
    assert set(lines_of(shared_dir / "signals")) == {"TERM"}
    wait_until(lambda: lines_of(shared_dir / "started") == ["0", "1"], what=f"job {lesser} to restart")


def test_processes_that_outlive_their_job_are_found(cluster: Cluster, shared_dir: Path) -> None:
    """proctrack/linuxproc ends the descendants of a job step, but not a daemon in another session."""
    job_id = cluster.submit("setsid --fork sleep 1234", "--nodelist=n2", cwd=shared_dir)
    cluster.wait_for_job(job_id)

    def left() -> list[Process]:
        return cluster.processes_left().get("n2", [])

    wait_until(lambda: [process.name for process in left()] == ["sleep"], what="only the daemon to be left")
    left()[0].signal(signal.SIGKILL)
    wait_until(lambda: not cluster.processes_left(), what="all processes to end")


def test_a_job_survives_its_slurmd(cluster: Cluster, shared_dir: Path) -> None:
    job_id = cluster.submit("touch on; until test -e go; do sleep 0.1; done", "--nodelist=n3", cwd=shared_dir)
    wait_until((shared_dir / "on").exists, what="the job to start")
    cluster.host(3).kill_slurmd()
    cluster.host(3).start_slurmd()
    (shared_dir / "go").touch()
    assert cluster.wait_for_job(job_id).state == "COMPLETED"


def test_a_job_does_not_survive_its_host(cluster: Cluster, shared_dir: Path) -> None:
    job_id = cluster.submit("touch on; sleep 1234", "--nodelist=n4", "--no-requeue", cwd=shared_dir)
    wait_until((shared_dir / "on").exists, what="the job to start")
    cluster.host(4).power_off()
    assert cluster.host(4).processes() == []
    cluster.set_host_down("n4")
    assert cluster.wait_for_job(job_id).state == "NODE_FAIL"


def test_a_disconnected_host_cannot_be_reached(cluster: Cluster) -> None:
    probe = ["python3", "-c", "import socket; socket.create_connection(('n2', 6818), timeout=1)"]
    wait_until(lambda: cluster.host(1).run(probe, check=False).returncode == 0, what="n2 to be reachable")
    cluster.host(2).disconnect()
    assert cluster.host(1).run(probe, check=False).returncode != 0
    cluster.host(2).reconnect()
    wait_until(lambda: cluster.host(1).run(probe, check=False).returncode == 0, what="n2 to be reachable")


def test_an_unprivileged_user_may_submit(cluster: Cluster, shared_dir: Path) -> None:
    shared_dir.chmod(0o777)
    nobody = ["setpriv", "--reuid=nobody", "--regid=nogroup", "--clear-groups"]
    cluster.run([*nobody, "srun", "--gres=gpu:1", "sh", "-c", "id -un > who"], cwd=shared_dir)
    assert lines_of(shared_dir / "who") == ["nobody"]


def test_a_second_site_has_other_names_and_gpus_and_no_accounting(second_site: Cluster) -> None:
    shown = second_site.run(["sinfo", "--Node", "--noheader", "--partition=batch", "--format=%N %T %G"]).stdout
    assert shown.splitlines() == [f"g0{k} idle gpu:l40s:2" for k in (1, 2, 3)]
    ran = second_site.run(["srun", "--nodes=2", "--gres=gpu:2", "sh", "-c", "echo $(hostname) $CUDA_VISIBLE_DEVICES"])
    assert sorted(ran.stdout.splitlines()) == ["g01 0,1", "g02 0,1"]
    refused = second_site.run(["sacct"], check=False)
    assert (refused.returncode, refused.stderr) == (1, "Slurm accounting storage is disabled\n")


def test_a_signal_reaches_a_command_on_the_head(cluster: Cluster) -> None:
    with subprocess.Popen(cluster.command(["sleep", "1234"]), env=job_environment()) as sleeper:
        wait_until(
            lambda: Path(f"/proc/{sleeper.pid}/comm").read_text() == "sleep\n",
            what="sleep to start",
            while_running=sleeper,
        )
        sleeper.terminate()
        assert sleeper.wait(timeout=PATIENCE_SECONDS) == -signal.SIGTERM
