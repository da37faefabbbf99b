"""What Snakemake would hand to sbatch, word for word, and what Slurm says to it: nothing is submitted.

Snakemake itself is run, with the user's profile, in a folder of its own where all datasets count as staged; in place of
sbatch it finds a program that asks `sbatch --test-only` and writes down question and answer. So whatever chooses
account, partition or GPUs, here they are as a real run would have them.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from trainyard.config.config import Config
from trainyard.utils.files import write_json

SNAKEFILE = Path(__file__).parents[3] / "Snakefile"
ASK = """#!/bin/sh
answer=$({sbatch} --test-only "$@" 2>&1)
{python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$?" "$answer" "$@" > {asked}/$$.json
echo "asked, not submitted" >&2
exit 1
"""


@dataclass(frozen=True)
class Request:
    """A job as sbatch would be given it."""

    job: str  # rule and wildcards: "train s 4x2"
    options: argparse.Namespace  # of sbatch, those that are looked at; see `_PARSER`
    accepted: bool
    answer: str  # Slurm's

    @property
    def gpus(self) -> str:
        """GPUs per node, `4` or `a100:4`; "" for none."""
        return self.options.gpus or (self.options.gres or "").removeprefix("gpu:")

    def __str__(self) -> str:
        """What it asks for, in words."""
        *model, gpus = self.gpus.split(":")
        asked = [f"{self.options.nodes} node{'s' * (self.options.nodes > 1)}", f"{self.options.cpus_per_task} CPUs"]
        asked += [" ".join([gpus, *model, "GPUs a node"])] if gpus else []
        return ", ".join([*asked, f"{self.options.mem or '?'} MB", f"{self.options.time} min"])


class SnakemakeFailed(Exception):
    """Snakemake ended before it had handed anything to sbatch; the message is the end of what it said."""


def requests(config: Config, config_file: Path, *, profile: Path, results: Path) -> list[Request]:
    """The jobs of all sweeps, scales and tree studies, whether or not they have been done already.

    Raises:
        SnakemakeFailed: with what Snakemake said.
    """
    with _rehearsal(config, results) as folder:
        asked, program = folder / "asked", folder / "bin/sbatch"
        asked.mkdir()
        program.parent.mkdir()
        program.write_text(ASK.format(sbatch=shutil.which("sbatch"), python=sys.executable, asked=asked))
        program.chmod(0o755)
        snakemake = [sys.executable, "-m", "snakemake", "--snakefile", str(SNAKEFILE), "--directory", str(folder)]
        options = ["--profile", str(profile.absolute()), "--configfile", str(config_file.absolute()), "--retries", "0"]
        done = subprocess.run(
            [*snakemake, *options, "--keep-going", "--", *_targets(config)],
            env=os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}"},
            text=True,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            check=False,
        )
        found = [parse(*json.loads(path.read_text())) for path in asked.iterdir()]
        if not found:
            raise SnakemakeFailed(_complaint(done.stdout))
        return sorted(found, key=lambda request: request.job)


@contextmanager
def _rehearsal(config: Config, results: Path) -> Iterator[Path]:
    """A folder in which everything is still to be done, with the evidence of `results` for what that will take."""
    with tempfile.TemporaryDirectory(prefix="trainyard-doctor-") as name:
        folder = Path(name)
        for dataset in config.datasets:
            meta = results / "data" / dataset / "meta.json"
            write_json(folder / "results/data" / dataset / "meta.json", _read(meta) or {"digest": "not staged"})
        for sweep in config.sweeps:
            journal = (results / "sweeps" / sweep / "journal.jsonl").absolute()
            if journal.exists():
                (folder / "results/sweeps" / sweep).mkdir(parents=True)
                (folder / "results/sweeps" / sweep / "journal.jsonl").symlink_to(journal)
        yield folder


def _read(meta: Path) -> object:
    try:
        return json.loads(meta.read_text())
    except (OSError, ValueError):
        return None


def _complaint(said: str) -> str:
    """The first error in what Snakemake said, or else the end of it."""
    lines = said.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if re.search(r"Exception|Error", line)), len(lines) - 5)
    return "\n".join(lines[max(0, first) :][:5])


def _targets(config: Config) -> list[str]:
    sweeps = [f"results/sweeps/{name}/trials.csv" for name in config.sweeps]
    scales = [
        f"results/scaling/{name}/{run}/summary.json"
        for name, study in config.scaling.items()
        for scale in study.scales
        for run in study.runs(scale)
    ]
    return [*sweeps, *scales, *(f"results/trees/{name}/trees.csv" for name in config.trees)]


def parse(code: str, answer: str, *arguments: str) -> Request:
    """A request from what was written down: sbatch's exit code, its answer, and its arguments."""
    options, _ = _PARSER.parse_known_args(arguments)
    job = options.comment.removeprefix("rule_").replace("_wildcards_", " ")
    return Request(job=job, options=options, accepted=code == "0", answer=" ".join(answer.split()))


_PARSER = argparse.ArgumentParser(allow_abbrev=False, add_help=False)
for _flags, _type in {
    ("--comment",): str,
    ("-A", "--account"): str,
    ("-p", "--partition"): str,
    ("-C", "--constraint"): str,
    ("-t", "--time"): int,  # minutes
    ("--qos",): str,
    ("--mem",): int,  # MB
    ("--gpus",): str,
    ("--gres",): str,
    ("--cpus-per-task",): int,
}.items():
    _PARSER.add_argument(*_flags, type=_type)
_PARSER.add_argument("--nodes", type=int, default=1)
