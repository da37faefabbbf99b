"""What tests share: a small config, and ways to run Trainyard on it as a user would."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import psutil
import yaml
from slurm_cluster.waiting import finished, wait_until
from trainyard.config.datasets import Synthetic
from trainyard.data.staging import stage

ROOT = Path(__file__).parents[1]
INSTALLED = 'trainyard() { .venv/bin/python scripts/trainyard cli.commands "$@"; }\n'  # for bash in a clone

TINY = {
    "datasets": {"tiny": {"source": "synthetic", "images": 64, "val_images": 24, "height": 8, "width": 8}},
    "sweeps": {
        "lr": {
            "dataset": "tiny",
            "train": {"model": "cnn", "model_args": {"width": 4}, "batch_size": 32},
            "grid": {"lr": [0.01, 0.02, 0.03, 0.04]},
            "slots": {"gpus_per_node": 2},
        }
    },
}

DEMO = yaml.safe_load((ROOT / "config/config.yaml").read_text())
TRAIN = {**TINY["sweeps"]["lr"]["train"], "epochs": 2}

# A config with everything, whose results `done` in tests/workflow/conftest.py has: the embedded demo with six models
# and one of its scales, and smaller studies with what the demo lacks.
FULL = {
    "datasets": {
        **TINY["datasets"],
        **DEMO["datasets"],
        "prices": {"source": "table", "path": "prices.csv", "target": "price"},
    },
    "sweeps": {
        "lr": {**TINY["sweeps"]["lr"], "train": TRAIN, "profile": [2, 2]},
        "depth": {**DEMO["sweeps"]["depth"], "grid": {"model_args.blocks": [4, 5, 6, 7, 8, 12]}},
        "trees": DEMO["sweeps"]["trees"],
        "prices": {
            "dataset": "prices",
            "trees": {"library": "lightgbm", "rounds": 5, "early_stopping": 2, "folds": 2},
            "grid": {"num_leaves": [3, 7]},
            "metric": "val_rmse",
        },
    },
    "scaling": {
        "ranks": {
            "dataset": "tiny",
            "train": {**TRAIN, "lr": 0.02},  # as one of the trials of sweep lr
            "scales": ["1x1", "1x2"],
            "mode": "strong",
            "profile": [2, 2],
            "repeats": 2,
            "keep_checkpoints": "all",
        },
        "width": {**DEMO["scaling"]["width"], "scales": ["1x2"]},
    },
    "pricing": {"gpu_hour": 2.5},
}


# The environment that torchrun gives the only rank of a training. Port 0 selects a free port.
ONE_RANK = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "LOCAL_WORLD_SIZE": "1",
            "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "TORCHELASTIC_RUN_ID": "none"}  # fmt: skip

# The begin of a module of trials, each of which takes a place, the file `place-<n>` beside the module.
PLACE_IN_ORDER = """
import itertools
from pathlib import Path

HERE = Path(__file__).parent

def place_in_order():
    # How many trials have begun before this one, also if two begin at the same time.
    for place in itertools.count():
        try:
            (HERE / f"place-{place}").touch(exist_ok=False)
            return place
        except FileExistsError:
            pass
"""

# A model with trouble on rank 1, in the first attempt. In the validation of epoch 2, it waits for a request to stop
# while there is a file `hold`.
TROUBLE = """
import os, signal, time
from pathlib import Path
import torch
from trainyard.training.models import SmallConvNet

HERE = Path(__file__).parent

class Model(SmallConvNet):
    trouble = ""
    validations = 0
    def forward(self, images):
        self.validations += not self.training
        if not self.training and self.validations == 2:
            if self.trouble == "raise":
                raise RuntimeError("planned trouble")
            if self.trouble == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            while (HERE / "hold").exists() and not signal.getsignal(signal.SIGUSR1).__self__.is_made:
                time.sleep(0.05)
        is_short = self.trouble == "memory" or (self.trouble == "memory later" and self.validations)
        if self.training and is_short and len(images) > 10:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return super().forward(images)

def build(*, channels, classes, trouble=""):
    model = Model(channels=channels, classes=classes, width=4)
    if os.environ.get("RANK") == "1" and not (HERE / f"had-{trouble}").exists():
        model.trouble = trouble
        (HERE / f"had-{trouble}").touch()
    return model
"""

# A model that waits in its first step, with all connections open, for the file `go`.
WAITING = """
import os, time
from pathlib import Path
from trainyard.training.models import SmallConvNet

class Waiting(SmallConvNet):
    def forward(self, images):
        Path(f"started-{os.environ['RANK']}").write_text(str(len(os.sched_getaffinity(0))))
        while not Path("go").exists():
            time.sleep(0.1)
        return super().forward(images)

def build(*, channels, classes):
    return Waiting(channels=channels, classes=classes, width=4)
"""


# A `nvidia-cuda-mps-control` that behaves as NVIDIA documents it, and appends its commands to the file $FAKE_MPS_LOG.
FAKE_MPS = """#!/bin/sh
cd "$CUDA_MPS_PIPE_DIRECTORY" || exit 1
if [ "$1" = -d ]; then
    if [ -n "$FAKE_MPS_ERROR" ]; then echo "$FAKE_MPS_ERROR"; exit 1; fi
    mkfifo control
    echo start >> "$FAKE_MPS_LOG"
    setsid sh -c '
        while read -r command < control; do
            echo "$command" >> "$FAKE_MPS_LOG"
            if [ "$command" = quit ] && [ -z "$FAKE_MPS_HANGS" ]; then rm -f control *.pid; exit; fi
        done' &
    echo $! > nvidia-cuda-mps-control.pid
elif [ -p control ]; then
    cat > control
    while [ -e nvidia-cuda-mps-control.pid ]; do sleep 0.02; done
else
    echo "Cannot find MPS control daemon process"
    exit 1
fi
"""


def alive(processes: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have not ended."""
    return [each for each in processes if is_alive(each)]


def is_alive(process: psutil.Process) -> bool:
    """Whether a process has not ended, also if it does so meanwhile."""
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


def child_named(name: str, process: psutil.Process) -> psutil.Process | None:
    """A living descendant of a process whose name begins so."""
    for each in process.children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if each.name().startswith(name):
                return each
    return None


def with_words(words: str, processes: Iterable[psutil.Process] | None = None) -> list[psutil.Process]:
    """Those of the processes, by default of all, that are alive and have these words in their command line."""
    found = []
    for process in psutil.process_iter() if processes is None else processes:
        with contextlib.suppress(psutil.Error):  # it has just ended, or belongs to another user
            if words in " ".join(process.cmdline()) and is_alive(process):
                found.append(process)
    return found


def stage_tiny(results: Path) -> None:
    """Stage the dataset of TINY in this process: it takes milliseconds, but a program a second to start."""
    stage(Synthetic.model_validate(TINY["datasets"]["tiny"]), results / "data/tiny")


class Project:
    """A folder with a config, and the commands of a user."""

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder, self.root = folder, root  # of the user's work, and of the clone of Trainyard
        self.config_file = folder / "config.yaml"
        self.results = folder / "results"
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"  # some machines have python3 but no `python`
        self.environment = os.environ | {"PYTHONPATH": str(folder), "PATH": path}

    def write(self, config: dict) -> None:
        self.config_file.write_text(yaml.safe_dump(config))

    def script(self, name: str, *options: str) -> list[str]:
        program = [sys.executable, str(self.root / "scripts" / f"{name}.py")]
        return [*program, "--config", str(self.config_file), "--results", str(self.results), *options]

    def run(self, *command: str, check: bool = True) -> subprocess.CompletedProcess:
        return finished(command, check=check, cwd=self.folder, env=self.environment)

    def start(self, *command: str) -> subprocess.Popen:
        """Start a program that no signal is ignored in, as in a terminal: also if the tests run under `nohup`."""
        return subprocess.Popen(
            ["env", "--default-signal=HUP,INT,QUIT", *command],
            cwd=self.folder,
            env=self.environment,
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def stage(self) -> None:
        stage_tiny(self.results)

    def snakemake_command(self, *options: str) -> list[str]:
        program = [str(Path(sys.executable).with_name("snakemake")), "--snakefile", str(self.root / "Snakefile")]
        common = ["--profile", str(self.root / "profiles/local"), "--configfile", str(self.config_file)]
        return [*program, *common, "--directory", str(self.folder), *options]

    def snakemake(self, *options: str, check: bool = True) -> str:
        done = self.run(*self.snakemake_command(*options), check=check)
        return done.stdout + done.stderr

    def kill_session(self, started: subprocess.Popen) -> None:
        """Kill a process started by `start` and all its descendants, and wait for their end."""
        family = [*psutil.Process(started.pid).children(recursive=True), psutil.Process(started.pid)]
        for process in family:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        started.wait()
        wait_until(lambda: not alive(family), what="their end")
