"""Workers are forked from a process that has imported their modules, and end with all that they depend on."""

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import psutil
import pytest
from project import ROOT, alive, child_named, with_words
from slurm_cluster.waiting import PATIENCE_SECONDS, wait_until
from trainyard.cluster.ray.patches import SWITCH
from trainyard.cluster.ray.worker_parent import ANSWER_SECONDS, FIRST_JOB, TITLE, fork_parent, prepared_parent
from trainyard.config.sweep import TrainSweep
from trainyard.config.train import Train
from trainyard.kinds.train import TrainTrials
from trainyard.packing.messages import WORKER_MODULES

# Prints what two actors see, and again after each line of standard input, which says which of them to replace; after
# `null`, those of another Ray.
ACTORS = """
import json, os, resource, runpy, sys
sys.path[0] = os.getcwd()
runpy.run_path("sweep.py")  # what a driver imports before it forks the parent
from trainyard.cluster.ray.start import start_ray
from trainyard.cluster.ray import worker_parent

def look():
    import os, pathlib, resource, signal, sys
    parent = pathlib.Path(f"/proc/{os.getppid()}")
    return {
        "pid": os.getpid(),
        "parent": os.getppid(),
        "parent_name": (parent / "comm").read_text().strip(),
        "parent_threads": len(list((parent / "task").iterdir())),
        "parent_files": (parent / "maps").read_text(),
        "modules": list(sys.modules),
        "seeds": [
            sys.modules["torch"].initial_seed() if "torch" in sys.modules else None,
            sys.modules["numpy.random"].get_state()[1].tolist() if "numpy.random" in sys.modules else None,
        ],
        "cannot_use_cuda": "torch" in sys.modules and sys.modules["torch"].cuda._is_in_bad_fork(),
        "same": {
            "path": sys.path,
            "program": sys.orig_argv[1],
            "variables": sorted(os.environ),
            "folder": os.getcwd(),
            "umask": (os.umask(0o77), os.umask(0o77))[0],
            "limits": [resource.getrlimit(number) for number in range(16)],
            "niceness": os.nice(0),
            "oom_score": pathlib.Path("/proc/self/oom_score_adj").read_text(),
            "blocked_signals": sorted(signal.pthread_sigmask(signal.SIG_BLOCK, ())),
            "handlers": [str(signal.getsignal(number)).partition(" at ")[0] for number in (2, 15, 17)],
            "has_own_group": os.getpgrp() != os.getpgid(os.getppid()),
            "session": os.getsid(0),
            "logs": os.readlink("/proc/self/fd/1").endswith(f"{os.getpid()}.out"),
        },
    }

_, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (hard // 2, hard))  # Ray raises it
seconds, *modules = sys.argv[1:]
worker_parent.ANSWER_SECONDS = float(seconds)
assert len(os.listdir("/proc/self/task")) == 1, "a fork copies one thread only; a lock of another stays locked"
if modules:
    worker_parent.fork_parent()
parent = worker_parent.prepared_parent(modules, {"OMP_NUM_THREADS": "1"})
lines = [None]
while lines:
    with start_ray(gpus=2, cpus=2, parent=parent):
        import ray
        Actor = ray.remote(num_gpus=1)(type("Actor", (), {"look": lambda self: look()}))
        actors = [Actor.remote(), Actor.remote()]
        print(json.dumps(ray.get([actor.look.remote() for actor in actors])), flush=True)
        while (lines := sys.stdin.readline()) and (numbers := json.loads(lines)) is not None:
            for number in numbers:
                ray.kill(actors[number])
                actors[number] = Actor.remote()
            print(json.dumps(ray.get([actor.look.remote() for actor in actors])), flush=True)
"""


@pytest.fixture
def start():
    """Starts the program; returns its process, and what its first two actors saw."""
    started = []

    def start(*modules, seconds=ANSWER_SECONDS):
        program = subprocess.Popen(
            [sys.executable, "-c", ACTORS, str(seconds), *modules],
            cwd=ROOT / "scripts",
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        started.append(program)
        return program, json.loads(program.stdout.readline())

    yield start
    for program in started:
        program.kill()
        program.communicate()


def replace(program, *actors):
    """What the actors see after these have been replaced."""
    print(json.dumps(actors), file=program.stdin, flush=True)
    return json.loads(program.stdout.readline())


def has_ended(*numbers):
    return not alive(each for each in psutil.process_iter() if each.pid in numbers)


def test_a_worker_of_a_training_is_one_of_rays_that_has_imported_torch_and_can_use_a_gpu(start):
    _, (plain, _) = start()
    modules = TrainTrials.preload(TrainSweep(dataset="d", train=Train(model="resnet18"), grid={"lr": [0.1]}))
    _, (forked, other) = start(*WORKER_MODULES, *modules, seconds=PATIENCE_SECONDS)
    assert forked["same"] == plain["same"]
    assert plain["same"]["niceness"] == os.nice(0), "trials would give way to everything else on the node"
    assert (plain["parent_name"], "torch" in plain["modules"]) == ("raylet", False)
    assert {*modules} <= {*forked["modules"]}
    assert forked["parent"] == other["parent"] != forked["pid"]
    assert forked["parent_threads"] == 1, "a fork copies one thread only; a lock that another held stays locked"
    assert not forked["cannot_use_cuda"], "CUDA works in no fork of a process that has initialized it"
    assert "libcuda.so" not in forked["parent_files"]
    assert "libnvidia-ml" not in forked["parent_files"]
    for seed, another in zip(forked["seeds"], other["seeds"], strict=True):
        assert None is not seed != another, "all workers would draw the same numbers"


def test_a_worker_of_users_programs_has_nothing_of_theirs_and_is_replaced_by_one_like_it(start):
    kinds = (f"trainyard.kinds.{kind}" for kind in ("command", "function", "trees"))
    program, (_, ended) = start(*WORKER_MODULES, *kinds, seconds=PATIENCE_SECONDS)
    first, second = replace(program, 1)
    assert second["pid"] != ended["pid"]
    assert second["parent"] == first["parent"] == ended["parent"]
    for heavy in ("torch", "numpy", "pandas"):  # they would have read their numbers of threads
        assert heavy not in second["modules"]


def test_when_the_parent_was_killed_workers_start_without_it(start):
    program, (first, second) = start(*WORKER_MODULES)
    os.kill(first["parent"], signal.SIGKILL)
    wait_until(lambda: has_ended(first["pid"], second["pid"]), what="the end of its workers")
    assert {each["parent_name"] for each in replace(program, 0, 1)} == {"raylet"}


# Forks a parent, and prints the program that requests workers, which do not wait long, once the parent is suspended.
IMPATIENT = """
import json, os, signal, sys
from pathlib import Path
sys.path.insert(0, sys.argv[1])
from trainyard.cluster.ray import worker_parent
worker_parent.ANSWER_SECONDS = 0.5
worker_parent.fork_parent()
parent = worker_parent.prepared_parent([], {"OMP_NUM_THREADS": "1"})
os.kill(parent._process.pid, signal.SIGSTOP)
print(json.dumps(parent.serve(Path.cwd())), flush=True)
sys.stdin.read()
"""
WORKER = """
import os, sys
with open("workers.txt", "a") as file:
    print(os.getpid(), file=file)
"""


def test_a_request_to_a_parent_that_hangs_becomes_the_only_worker(tmp_path, monkeypatch):
    run = partial(subprocess.run, check=True, timeout=PATIENCE_SECONDS)  # a request that waits holds pipes open
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_JOB_ID", FIRST_JOB)
    monkeypatch.setenv("RAY_RAYLET_PID", str(os.getpid()))
    (tmp_path / "worker.py").write_text(WORKER)
    command = [sys.executable, "-c", IMPATIENT, str(ROOT / "scripts")]
    with subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as driver:
        *python, path, _ = program = json.loads(driver.stdout.readline())
        (process,) = psutil.Process(driver.pid).children()
        os.link(path, "again")
        for number in (1, 2):
            run([*program, "worker.py"])
            assert not Path(path).exists(), "no other request waits for it"
            assert len(Path("workers.txt").read_text().split()) == number
        process.resume()
        run([*python, "again", str(PATIENCE_SECONDS), "worker.py"])  # after the request that nobody waits for
        wait_until(lambda: not process.children(), what="the end of both workers")
        assert len(Path("workers.txt").read_text().split()) == 3


def test_when_the_parent_hangs_workers_start_without_it_and_remain_the_only_ones(start):
    program, _ = start(*WORKER_MODULES, seconds=5)
    (parent,) = with_words(TITLE, psutil.Process(program.pid).children())
    parent.suspend()
    seen = replace(program, 0, 1)
    assert {each["parent_name"] for each in seen} == {"raylet"}
    parent.resume()
    wait_until(lambda: not parent.children(), what="the end of what it has forked since")
    assert [each["pid"] for each in replace(program)] == [each["pid"] for each in seen]


def test_there_is_no_parent_if_the_patches_of_ray_are_turned_off(monkeypatch):
    monkeypatch.setenv(SWITCH, "0")
    fork_parent()
    assert prepared_parent(WORKER_MODULES, {"OMP_NUM_THREADS": "1"}) is None


@pytest.mark.parametrize("victim", ["driver", "raylet"])
def test_no_worker_outlives_the_driver_or_the_raylet(start, victim):
    program, (first, second) = start(*WORKER_MODULES)
    ended = program if victim == "driver" else child_named("raylet", psutil.Process(program.pid))
    ended.kill()
    parent = [first["parent"]] * (victim == "driver")  # another Ray may use it
    wait_until(lambda: has_ended(first["pid"], second["pid"], *parent), what="their end")


def test_a_second_ray_has_workers_of_the_same_parent(start):
    program, (first, second) = start(*WORKER_MODULES, seconds=PATIENCE_SECONDS)
    print("null", file=program.stdin, flush=True)
    others = json.loads(program.stdout.readline())
    assert {each["parent"] for each in others} == {first["parent"]}
    assert has_ended(first["pid"], second["pid"])


# It inherits a lock, and ends before it starts Ray, while the parent imports.
ENDS_EARLY = """
import sys
sys.path.insert(0, sys.argv[1])
from trainyard.cluster.ray import worker_parent
worker_parent.fork_parent()
worker_parent.prepared_parent(["torch"], {"OMP_NUM_THREADS": "1"})
parent = worker_parent._parent._process.pid
print(parent, open(f"/proc/{parent}/environ").read().count("SLURM_JOB_ID=7"))
"""


def test_nothing_of_a_driver_that_ends_without_ray_is_left(tmp_path):
    """Its environment, by which the processes of a job are found, can be read meanwhile."""
    program = f"exec 9> {tmp_path}/lock; flock 9; {sys.executable} -c '{ENDS_EARLY}' {ROOT}/scripts; echo $?"
    environment = os.environ | {"SLURM_JOB_ID": "7"}
    done = subprocess.run(["bash", "-c", program], env=environment, capture_output=True, text=True, check=True)
    parent, is_named, code = map(int, done.stdout.split())
    assert (is_named, code) == (1, 0), done.stderr
    subprocess.run(["flock", "--timeout", "60", str(tmp_path / "lock"), "true"], check=True)
    wait_until(lambda: has_ended(parent), what="its end")


# An actor starts a process in a session of its own and leaves it behind, as a trial's function may.
LEAVES = """
import subprocess, time
from trainyard.cluster.ray.start import start_ray

with start_ray(gpus=0, cpus=1):
    import ray
    start = ray.remote(lambda: subprocess.Popen(["sleep", "600"], start_new_session=True).pid)
    print(ray.get(start.remote()), flush=True)
    time.sleep(600)
"""


def test_what_a_trial_has_left_behind_ends_with_a_driver_that_is_killed():
    environment = os.environ | {"PYTHONPATH": str(ROOT / "scripts")}
    with subprocess.Popen([sys.executable, "-c", LEAVES], stdout=subprocess.PIPE, env=environment, text=True) as driver:
        left = int(driver.stdout.readline())
        driver.kill()
    wait_until(lambda: has_ended(left), what="its end")
