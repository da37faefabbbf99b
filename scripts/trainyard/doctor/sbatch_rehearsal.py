"""The sbatch lines that Snakemake would submit, and Slurm's response to each; no job is submitted.

Snakemake runs with the user's profile in a folder of its own, in which all datasets count as staged. In place of sbatch
it finds a program that runs `sbatch --test-only` with the same arguments, and records the arguments and the response.
So the account, partition and GPUs are those of a real run, whichever setting they come from.
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
RECORDER = """#!/bin/sh
response=$({sbatch} --test-only "$@" 2>&1)
{python} -c 'import json, sys; print(json.dumps(sys.argv[1:]))' "$?" "$response" "$@" > {records}/$$.json
echo "tested, not submitted" >&2
exit 1
"""


@dataclass(frozen=True)
class SbatchRequest:
    """A job as it would be requested of sbatch, and Slurm's response."""

    job: str  # rule and wildcards: "train s 4x2"
    options: argparse.Namespace  # the options of sbatch that `_PARSER` has
    accepted: bool
    response: str

    @property
    def gpus(self) -> str:
        """GPUs per node, `4` or `a100:4`; "" for none."""
        return self.options.gpus or (self.options.gres or "").removeprefix("gpu:")

    def __str__(self) -> str:
        """The requested resources."""
        *model, gpus = self.gpus.split(":")
        parts = [f"{self.options.nodes} node{'s' * (self.options.nodes > 1)}", f"{self.options.cpus_per_task} CPUs"]
        parts += [" ".join([gpus, *model, "GPUs per node"])] if gpus else []
        return ", ".join([*parts, f"{self.options.mem or '?'} MB", f"{self.options.time} min"])


class SnakemakeError(Exception):
    """Snakemake ended before it called sbatch; the message is the first error that it printed."""


def rehearse(config: Config, config_file: Path, *, profile: Path, results: Path) -> list[SbatchRequest]:
    """The requests for all sweeps, scales and tree studies, including those that are already done.

    Raises:
        SnakemakeError: Snakemake called sbatch for none of them.
    """
    with _rehearsal_folder(config, results) as folder:
        records, program = folder / "records", folder / "bin/sbatch"
        records.mkdir()
        program.parent.mkdir()
        program.write_text(RECORDER.format(sbatch=shutil.which("sbatch"), python=sys.executable, records=records))
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
        requests = [parse_request(*json.loads(path.read_text())) for path in records.iterdir()]
        if not requests:
            raise SnakemakeError(_first_error(done.stdout))
        return sorted(requests, key=lambda request: request.job)


@contextmanager
def _rehearsal_folder(config: Config, results: Path) -> Iterator[Path]:
    """A folder without results, but with the journals of `results`, from which the walltime is predicted."""
    with tempfile.TemporaryDirectory(prefix="trainyard-doctor-") as name:
        folder = Path(name)
        for dataset in config.datasets:
            meta = results / "data" / dataset / "meta.json"
            write_json(folder / "results/data" / dataset / "meta.json", _read_json(meta) or {"digest": "not staged"})
        for sweep in config.sweeps:
            journal = (results / "sweeps" / sweep / "journal.jsonl").absolute()
            if journal.exists():
                (folder / "results/sweeps" / sweep).mkdir(parents=True)
                (folder / "results/sweeps" / sweep / "journal.jsonl").symlink_to(journal)
        yield folder


def _read_json(path: Path) -> object:
    try:
        return json.loads(path.read_text())
    except (OSError, ValueError):
        return None


def _first_error(output: str) -> str:
    """Five lines of Snakemake's output from its first error on, or its last five lines."""
    lines = output.strip().splitlines()
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


def parse_request(code: str, response: str, *arguments: str) -> SbatchRequest:
    """A request from its record: sbatch's exit code, response and arguments."""
    options, _ = _PARSER.parse_known_args(arguments)
    job = options.comment.removeprefix("rule_").replace("_wildcards_", " ")
    return SbatchRequest(job=job, options=options, accepted=code == "0", response=" ".join(response.split()))


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
