"""The jobs of a config as they would be requested of sbatch, and Slurm's response to each; no job is submitted.

Snakemake and its Slurm plugin write the lines with the user's profile, as in a run in which nothing is done yet. So the
account, partition and GPUs are the same, whichever setting they come from.
"""

import argparse
import json
import math
import re
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from trainyard.checks.helper_programs import ask_helper
from trainyard.cluster.slurm_queries import parse_resources, parse_time_limit
from trainyard.config.config import Config
from trainyard.utils.import_path import SCRIPTS
from trainyard.utils.text import count_of

TARGETS = ("data", "sweeps", "scaling")  # the rules that need all jobs
NEVER_TRAINED: Final = 10**9  # a number for `retrain` that nobody has used


@dataclass(frozen=True)
class SbatchRequest:
    """A job as it would be requested of sbatch, and Slurm's response."""

    job: str  # rule and wildcards: "train s 4x2"
    options: argparse.Namespace  # the options of sbatch that `SBATCH_OPTIONS` has
    accepted: bool
    response: str
    dataset: str | None = None  # that the job reads

    @property
    def gpus(self) -> str:
        """GPUs per node, `4` or `a100:4`; "" for none."""
        generic = (item.removeprefix("gpu:") for item in (self.options.gres or "").split(",") if item[:4] == "gpu:")
        return self.options.gpus or self.options.gpus_per_node or next(generic, "")

    @property
    def gpu_count(self) -> int:
        """The number of GPUs per node."""
        return int(self.gpus.split(":")[-1] or 0)

    @property
    def cpus(self) -> int:
        """CPUs per node."""
        per_gpu = self.options.cpus_per_gpu
        return per_gpu * self.gpu_count if per_gpu else self.options.cpus_per_task or 1

    @property
    def mem_mb(self) -> float:
        """Memory per node, in MB; 0 if the site's default applies."""
        return self.options.mem or self.cpus * (self.options.mem_per_cpu or 0)

    @property
    def resources(self) -> dict[str, float]:
        """The requested resources on all nodes together, as Slurm names them; memory is in MB."""
        nodes = self.options.nodes
        model = self.gpus.rpartition(":")[0]
        names = ["gres/gpu", f"gres/gpu:{model}"] if model else ["gres/gpu"]
        gpus = dict.fromkeys(names, nodes * self.gpu_count)
        return {"cpu": nodes * self.cpus, "mem": nodes * self.mem_mb, "node": nodes, **gpus}

    def __str__(self) -> str:
        """The requested resources."""
        *model, gpus = self.gpus.split(":")
        parts = [count_of(self.options.nodes, "node"), count_of(self.cpus, "CPU")]
        parts += [" ".join([gpus, *model, "GPUs per node"])] if gpus else []
        minutes = f"{self.options.time:g}" if self.options.time else "?"
        return ", ".join([*parts, f"{self.mem_mb or '?'} MB", f"{minutes} min"])


def request_jobs(config: Config, config_file: Path, profile: Path) -> tuple[list[SbatchRequest], dict[str, list[str]]]:
    """What becomes of all jobs of a config, done or not: each one is requested of sbatch, or refused before.

    The jobs that are refused are listed by the error of Snakemake or of its Slurm plugin.

    Raises:
        UserError: Snakemake does not end.
    """
    options = ["--snakefile", str(SCRIPTS.with_name("Snakefile")), "--profile", str(profile.absolute()),
               "--configfile", str(config_file), "--config"]  # fmt: skip
    for kind in ("sweeps", "scaling"):  # a job with nothing to run would request one CPU
        again = {name: {"retrain": NEVER_TRAINED} for name in getattr(config, kind)}
        if again:
            options.append(f"{kind}={json.dumps(again)}")
    entries, done = ask_helper("cli.sbatch_preview", [*options, "--", *TARGETS], task="planning the jobs of the config")
    if entries is None:
        return [], {first_error(done.stderr): ["any job"]}
    requests = list[SbatchRequest]()
    refused = dict[str, list[str]]()
    for entry in entries:
        if "error" in entry:
            refused.setdefault(entry["error"], []).append(entry["job"])
            continue
        requests.append(ask_sbatch(entry["job"], entry["line"], dataset=entry["dataset"]))
    return sorted(requests, key=lambda each: each.job), refused


def ask_sbatch(job: str, line: str, *, dataset: str | None = None) -> SbatchRequest:
    """A request from its line, and what `sbatch --test-only` responds to it."""
    line = f"{line} --test-only --wrap=true"  # through a shell, as in a run
    done = subprocess.run(line, shell=True, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    return parse_request(job, line, accepted=not done.returncode, response=done.stdout, dataset=dataset)


def parse_request(job: str, line: str, *, accepted: bool, response: str, dataset: str | None = None) -> SbatchRequest:
    """A request from its line, and Slurm's response."""
    try:
        options, _ = SBATCH_OPTIONS.parse_known_args(shlex.split(line))
    except (argparse.ArgumentError, ValueError):  # as of `slurm_extra: --time=abc`: the response names it
        options = SBATCH_OPTIONS.parse_args([])
    return SbatchRequest(job, options, accepted, " ".join(response.split()), dataset)


def first_error(output: str) -> str:
    """Five lines of Snakemake's output from its first error on, or its last five lines."""
    lines = output.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if re.search(r"Exception|Error", line)), len(lines) - 5)
    return "\n".join(lines[max(0, first) :][:5])


def _mb(text: str) -> int:
    """Memory as sbatch takes it: `8000`, `8G`."""
    return math.ceil(parse_resources(f"mem={text.upper().rstrip('B')}")["mem"])


_OPTIONS: Final[dict[tuple[str, ...], Callable[[str], Any]]] = {
    ("-A", "--account"): str,
    ("-p", "--partition"): str,
    ("-C", "--constraint"): str,
    ("-t", "--time"): parse_time_limit,
    ("-q", "--qos"): str,
    ("--mem",): _mb,
    ("--mem-per-cpu",): _mb,
    ("-G", "--gpus"): str,
    ("--gpus-per-node",): str,  # of types that Snakemake's plugin refuses
    ("--gres",): str,
    ("-c", "--cpus-per-task"): int,
    ("--cpus-per-gpu",): int,
}
SBATCH_OPTIONS: Final = argparse.ArgumentParser(allow_abbrev=False, add_help=False, exit_on_error=False)
for _flags, _type in _OPTIONS.items():
    SBATCH_OPTIONS.add_argument(*_flags, type=_type)
SBATCH_OPTIONS.add_argument("-N", "--nodes", type=lambda text: int(text.split("-")[0]), default=1)
