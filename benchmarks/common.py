"""Helpers of the benchmarks: a folder with a config, Trainyard's programs, and results that are printed and kept."""

import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

if TYPE_CHECKING:
    from trainyard.packing.trial_claims import TrialClaims
    from trainyard.packing.trial_queue import TrialQueue
    from trainyard.planning.journal import Journal

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT / "scripts"))
RESULTS = ROOT / "benchmarks/results"
_WRITTEN = set[Path]()  # by this process

TINY = {"source": "synthetic", "images": 32, "val_images": 8, "height": 8, "width": 8}
TRIVIAL = {"model": "cnn", "model_args": {"width": 2}, "batch_size": 32}


def sweep_config(trials: int, *, slots: int = 2) -> dict[str, Any]:
    """The config of a sweep of one-step trials."""
    grid = {"seed": {"start": 1, "stop": trials}}
    sweep = {"dataset": "tiny", "train": TRIVIAL, "grid": grid, "slots": {"gpus_per_node": slots}}
    return {"datasets": {"tiny": TINY}, "sweeps": {"s": sweep}}


def queue_beside(journal: "Journal", claims: "TrialClaims", **parts: Any) -> "TrialQueue":
    """The queue of a job that shares its trials in this order, without a deadline; `parts` are of the `SweepRun`."""
    from trainyard.config.config import Data
    from trainyard.packing.failure_policy import FailurePolicy
    from trainyard.packing.messages import WorkerSetup
    from trainyard.packing.sweep_run import SweepRun
    from trainyard.packing.time_limits import TimeLimits
    from trainyard.packing.trial_queue import TrialQueue

    run = SweepRun(
        state=claims.state_now(),
        journal=journal,
        claims=claims,
        setup=WorkerSetup(claims.state_now().sweep, journal.path.parents[1], Data()),
        limits=TimeLimits(None, can_resume=True),
        failures=FailurePolicy(retries=0),
        **parts,
    )
    return TrialQueue(run)


@contextmanager
def folder_with(config: dict[str, Any]) -> Iterator[Path]:
    """A temporary folder with the config as config.yaml and its dataset staged."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "config.yaml").write_text(yaml.safe_dump(config))
        run_program(folder, "stage", "--dataset", "tiny")
        yield folder


def run_program(folder: Path, program: str, *options: str) -> float:
    """Run a program of scripts/ on the folder's config; return the time of its start in Unix seconds."""
    command = [sys.executable, str(ROOT / "scripts" / f"{program}.py"), "--config", "config.yaml", *options]
    started = time.time()
    subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    return started


def print_table(header: list[str], rows: list[list[str]]) -> None:
    """Print a Markdown table, and keep it."""
    print_result(*("| " + " | ".join(row) + " |" for row in [header, ["---"] * len(header), *rows]))


def print_result(*lines: str) -> None:
    """Print lines, and keep them in benchmarks/results/, in the file of this command.

    A new run writes the file anew, with its command, date and machine; what else it prints follows.
    """
    print(*lines, sep="\n")
    words = [Path(sys.argv[0]).stem, *sys.argv[1:]]
    path = RESULTS / (re.sub(r"\W+", "-", " ".join(words)).strip("-") + ".md")
    before = path.read_text() if path in _WRITTEN else _result_head()
    path.parent.mkdir(exist_ok=True)
    path.write_text(before + "\n" + "\n".join(lines) + "\n")
    _WRITTEN.add(path)


def _result_head() -> str:
    """The command that measures, and on what."""
    command = shlex.join(["python", f"benchmarks/{Path(sys.argv[0]).name}", *sys.argv[1:]])
    versions = ", ".join(f"{name} {version(name)}" for name in ("snakemake", "ray", "torch"))
    machine = (
        f"{os.cpu_count()} CPUs at a load of {os.getloadavg()[0]:.1f}, Python {platform.python_version()}, {versions}"
    )
    return f"# `{command}`\n\n{time.strftime('%Y-%m-%d', time.gmtime())}, {machine}.\n"
