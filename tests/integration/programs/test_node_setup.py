"""The commands of a user before the first trial of a job, and after the last one."""

import os
import re
from pathlib import Path

import psutil
import pytest
from project import is_alive
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from trainyard.cluster import host
from trainyard.config.load import check_config
from trainyard.planning.attempts import Fold
from trainyard.planning.journal import Ended, Started
from trainyard.programs.node_setup import prepared_nodes
from trainyard.utils.errors import UserError

# Starts the command once for each of two nodes, as srun does.
TWO_NODES = ["bash", "-c", 'for node in a b.cluster.example; do SLURMD_NODENAME=$node "$@" & done; wait', "srun"]


def study(**keys):
    return check_config({"sweeps": {"s": {"command": "true", **keys}}}).sweeps["s"]


def test_trials_get_what_setup_exports_and_teardown_runs_before_its_server_ends(tmp_path, caplog):
    setup = f"cd /\nexport DATA='{tmp_path}/a b' PATH=/own:$PATH\nlocal=1\nsleep 600 & export SERVER=$!\n# the end"
    teardown = f"kill -0 $SERVER\necho $DATA > {tmp_path}/seen\nexit 3"
    with prepared_nodes(study(setup=setup, teardown=teardown), tmp_path / "setup.log") as by_node:
        variables = by_node[host.node_name()]
        server = psutil.Process(int(variables.pop("SERVER")))
        assert variables == {"DATA": f"{tmp_path}/a b", "PATH": f"/own:{os.environ['PATH']}"}
        assert is_alive(server)
        assert not (tmp_path / "seen").exists()
    assert not is_alive(server)
    assert (tmp_path / "seen").read_text() == f"{tmp_path}/a b\n"
    assert "`teardown` failed: exit code 3" in caplog.text


def test_a_trial_lacks_what_setup_unsets_and_has_the_gpus_of_its_slot(tmp_path, monkeypatch):
    monkeypatch.setenv("CUDA_HOME", "/old")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3")
    setup = "unset CUDA_HOME\nexport CUDA_VISIBLE_DEVICES=0"
    with prepared_nodes(study(setup=setup), tmp_path / "setup.log") as by_node:
        assert by_node[host.node_name()] == {"CUDA_HOME": None}


def test_what_setup_starts_may_print_more_than_is_read(tmp_path):
    setup = f"(while test ! -e {tmp_path}/go; do sleep 0.02; done; seq 100000; touch {tmp_path}/printed) &"
    with prepared_nodes(study(setup=setup), tmp_path / "setup.log"):
        (tmp_path / "go").touch()
        wait_until((tmp_path / "printed").exists, what="the end of its output")


@pytest.mark.parametrize(
    ("setup", "message"),
    [
        (
            "tar xf absent.tar\nexport DATA=x",
            "`setup` failed, and nothing was started: exit code 2; the end of .*absent",
        ),
        ("echo bad disk; false | cat\ntrue", "exit code 1; .*\nbad disk"),
        ("kill -9 $$", "killed by SIGKILL"),
        ("false", "exit code 1; it printed nothing$"),
    ],
)
def test_setup_that_fails_is_an_error_with_the_end_of_its_output_and_is_torn_down(tmp_path, setup, message):
    options = study(setup=setup, teardown=f"touch {tmp_path}/down")
    with pytest.raises(UserError, match=f"(?s){message}"), prepared_nodes(options, tmp_path / "setup.log"):
        raise AssertionError("it has failed")
    assert (tmp_path / "down").exists()


def test_each_node_has_its_own_variables(tmp_path):
    options = study(
        setup="export DATA=/local/$SLURMD_NODENAME", teardown=f"touch {tmp_path}/$SLURMD_NODENAME-${{DATA##*/}}"
    )
    with prepared_nodes(options, tmp_path / "setup.log", nodes=2, srun=TWO_NODES) as by_node:
        assert by_node == {"a": {"DATA": "/local/a"}, "b": {"DATA": "/local/b.cluster.example"}}
    assert {path.name for path in tmp_path.glob("?*-?*")} == {"a-a", "b.cluster.example-b.cluster.example"}


SWEEP = {
    "setup": "echo unpacking >> setup.txt\nexport DATA=/local/data",
    "teardown": "echo $DATA >> teardown.txt",
    "grid": {"n": [1, 2, 3]},
    "slots": {"cpus": 1},
}
FUNCTION = "import os\n\ndef run(config, context):\n    return {'found': float(os.environ['DATA'] == '/local/data')}\n"


def events(project, kind):
    fold = Fold(project.results / "sweeps/s")
    return [event for _, event in fold.news() if isinstance(event, kind)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "program",
    [
        {
            "command": "echo found=$([ $DATA = /local/data ] && echo {n})",
            "metrics": {"pattern": "found=(?P<f>{number})"},
        },
        {"function": "mine:run"},
    ],
    ids=["command", "function"],
)
def test_setup_runs_once_per_job_and_teardown_also_after_failed_trials(project, program):
    (project.folder / "mine.py").write_text(FUNCTION)
    project.write({"sweeps": {"s": {**SWEEP, **program}}})
    project.run(*project.script("sweep", "--sweep", "s"))
    assert (project.folder / "setup.txt").read_text() == "unpacking\n"
    assert (project.folder / "teardown.txt").read_text() == "/local/data\n"
    assert re.search(r",1,finished,1,[\d.]+,1$", (project.results / "sweeps/s/trials.csv").read_text(), re.MULTILINE)
    project.run(*project.script("sweep", "--sweep", "s"))
    assert (project.folder / "setup.txt").read_text() == "unpacking\n", "no trial was pending"


THREADS = """
import numpy
from threadpoolctl import threadpool_info

def run(config, context):
    return {"threads": max(pool["num_threads"] for pool in threadpool_info() if "openblas" in pool["filepath"])}
"""


@pytest.mark.parametrize(("cpus", "setup", "threads"), [(1, "true", 1), (2, "export OPENBLAS_NUM_THREADS=1", 1)])
def test_numpy_in_a_function_has_the_threads_of_a_trial_or_of_setup(project, monkeypatch, cpus, setup, threads):
    """Ray imports numpy before the first trial. Snakemake sets these variables to the CPUs of the job."""
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "GOTO_NUM_THREADS"):
        monkeypatch.setenv(name, "2")
    (project.folder / "mine.py").write_text(THREADS)
    slots = {"cpus": 2, "cpus_per_trial": cpus}
    project.write({"sweeps": {"s": {"function": "mine:run", "setup": setup, "grid": {"n": [1]}, "slots": slots}}})
    project.run(*project.script("sweep", "--sweep", "s"))
    (end,) = events(project, Ended)
    assert end.metrics["threads"] == threads


@pytest.mark.slow
def test_setup_that_fails_uses_up_no_trial_and_a_stopped_job_is_torn_down(project):
    failing = {**SWEEP, "command": "echo {n}; touch up; sleep 600", "metric": "seconds"}
    project.write({"sweeps": {"s": {**failing, "setup": "echo the disk is full\nexit 7"}}})
    failed = project.run(*project.script("sweep", "--sweep", "s"), check=False)
    assert failed.returncode == 1
    assert "`setup` failed, and nothing was started: exit code 7" in failed.stdout + failed.stderr
    assert "the disk is full" in failed.stdout + failed.stderr
    assert events(project, Started) == []
    Path(project.folder / "teardown.txt").unlink()

    project.write({"sweeps": {"s": failing}})
    assert "a job begins with `setup`" in project.snakemake("-n", "sweeps", "--verbose")
    started = project.start(*project.script("sweep", "--sweep", "s"))
    wait_until((project.folder / "up").exists, what="a trial", while_running=started)
    started.terminate()
    started.communicate(timeout=PATIENCE_SECONDS)
    assert (project.folder / "teardown.txt").read_text() == "/local/data\n"
