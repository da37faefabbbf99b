"""The sbatch lines that Snakemake would submit, and Slurm's response to each; no job is submitted.

Snakemake runs with the user's profile in a copy of the working directory in which nothing is done yet, and finds a
stand-in for sbatch. So the account, partition and GPUs are the same as in a real run, whichever setting they come from.
Staging and studies are rehearsed side by side, since a study waits until its dataset is staged.
"""

import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import yaml

from trainyard.checks.sbatch_request import SbatchRequest, parse_request
from trainyard.checks.sbatch_stand_in import StandIn, sbatch_stand_in
from trainyard.config.config import Config
from trainyard.config.datasets import needs_download
from trainyard.config.trials import published_weights
from trainyard.config.weights import weights_receipt
from trainyard.data.staged import DataError, DatasetMeta, read_meta, write_meta
from trainyard.planning.sweep_state import NOT_STAGED
from trainyard.utils.files import write_json

SNAKEFILE = Path(__file__).parents[3] / "Snakefile"
# Outputs of rules, because of which Snakemake would skip a job, or staging. Plans depend on the files beside them.
DECLARED = ("meta.json", "download.json", "trials.csv", "timeline.csv", "epochs.csv", "summary.json", "history.csv",
            "trees.csv")  # fmt: skip
PARTITION_FILE = "slurm-partition-config"  # a key of the profile; in the environment, SNAKEMAKE_SLURM_PARTITIONS


@dataclass(frozen=True)
class Refusal:
    """Jobs that did not reach sbatch, and what Snakemake or its Slurm plugin printed about them."""

    jobs: tuple[str, ...]  # rule and wildcards, as in SbatchRequest
    words: str


@dataclass(frozen=True)
class Rehearsal:
    """What becomes of the jobs of a config: each one is requested of sbatch, or refused before."""

    requests: tuple[SbatchRequest, ...] = ()
    refusals: tuple[Refusal, ...] = ()


@dataclass(frozen=True)
class WorkflowJob:
    """A job of the config."""

    rule: str  # without the suffix for several nodes
    wildcards: str  # joined as by Snakemake's plugin
    target: str  # a file that the job writes
    dataset: str | None = None  # that it reads

    def is_of(self, job: str) -> bool:
        """Whether a job, as in SbatchRequest, is this one."""
        rule, _, wildcards = job.partition(" ")
        return (rule.removesuffix("_on_nodes"), wildcards) == (self.rule, self.wildcards)

    def __str__(self) -> str:
        """Rule and wildcards."""
        return f"{self.rule} {self.wildcards}"


def workflow_jobs(config: Config) -> tuple[list[WorkflowJob], list[WorkflowJob]]:
    """All jobs of a config, including those that are already done: the stagings, and the studies."""
    stagings = [WorkflowJob("stage", name, f"results/data/{name}/meta.json") for name in config.datasets]
    sweeps = [
        WorkflowJob("sweep", name, f"results/sweeps/{name}/trials.csv", sweep.dataset)
        for name, sweep in config.sweeps.items()
    ]
    trainings = [
        WorkflowJob(
            "train", f"{name}_{run}".replace("/", "_"), f"results/scaling/{name}/{run}/summary.json", study.dataset
        )
        for name, study in config.scaling.items()
        for scale in study.scales
        for run in study.runs(scale)
    ]
    trees = [
        WorkflowJob("fit_trees", name, f"results/trees/{name}/trees.csv", study.dataset)
        for name, study in config.trees.items()
    ]
    return stagings, [*sweeps, *trainings, *trees]


def rehearse_submission(config: Config, config_file: Path, *, profile: Path, results: Path) -> Rehearsal:
    """What becomes of all jobs of a config.

    Raises:
        UserError: there is no folder in which a program can be executed.
    """
    stagings, studies = workflow_jobs(config)
    with sbatch_stand_in([Path(tempfile.gettempdir()), Path("/var/tmp"), Path("/dev/shm"), Path.cwd()]) as stand_in:
        folders = {"stagings": stagings, "studies": studies}
        for name, jobs in folders.items():
            _fill(stand_in.folder / name, config, results, staged=jobs is studies)
        running = [
            (jobs, _start_snakemake(jobs, config_file, profile, stand_in, stand_in.folder / name))
            for name, jobs in folders.items()
            if jobs
        ]
        outputs = [(jobs, process.communicate()[0]) for jobs, process in running]
        requests = sorted((parse_request(*each) for each in stand_in.records()), key=lambda request: request.job)
    reached = [request.job for request in requests]
    missed = [(job, output) for jobs, output in outputs for job in jobs if not any(map(job.is_of, reached))]
    return Rehearsal(tuple(requests), tuple(group_refusals((str(job), find_words(job, text)) for job, text in missed)))


def _start_snakemake(
    jobs: Sequence[WorkflowJob], config_file: Path, profile: Path, stand_in: StandIn, folder: Path
) -> "subprocess.Popen[str]":
    options = ["--snakefile", str(SNAKEFILE), "--profile", str(profile.absolute()), "--retries", "0", "--keep-going"]
    options += ["--configfile", str(config_file.absolute()), *_partition_file(profile, folder)]
    return subprocess.Popen(
        [sys.executable, "-m", "snakemake", *options, "--", *(job.target for job in jobs)],
        cwd=folder,
        env=stand_in.environment | _absolute_paths(os.environ),
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def _partition_file(profile: Path, folder: Path) -> list[str]:
    """The option with the profile's file of partitions, which it may name relative to the working directory.

    The option names a link, because Snakemake replaces variables in the path.
    """
    files = [path for name in ("config.yaml", "config.v8+.yaml") if (path := profile / name).exists()]
    settings = yaml.safe_load(files[0].read_text()) if files else None
    named = settings.get(PARTITION_FILE) if isinstance(settings, dict) else None
    if not named:
        return []
    (folder / ".partitions.yaml").symlink_to(Path(os.path.expandvars(named)).absolute())
    return [f"--{PARTITION_FILE}", ".partitions.yaml"]


def _absolute_paths(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables whose entries may be relative to the working directory, with absolute ones."""
    return {
        name: ":".join(str(Path(entry).absolute()) for entry in environment[name].split(":"))
        for name in ("PYTHONPATH", "SNAKEMAKE_SLURM_PARTITIONS")
        if environment.get(name)
    }


def _fill(folder: Path, config: Config, results: Path, *, staged: bool) -> None:
    """Make the copy of the working directory: links to its content, and to files of the results that plans depend on.

    Its datasets are staged, or only downloaded. No folder of the results is linked: Snakemake removes outputs.
    """
    folder.mkdir()
    for path in Path.cwd().iterdir():
        if path.name not in ("results", ".snakemake"):
            (folder / path.name).symlink_to(path)
    for name, dataset in config.datasets.items():
        source, target = results / "data" / name, folder / "results/data" / name
        if staged:
            _link_files(source, target)
            write_meta(target, _known_meta(source))
        elif needs_download(dataset):
            write_json(target / "download.json", {})
    for named in published_weights(*config.sweeps.values(), *config.scaling.values()):
        write_json(folder / "results" / weights_receipt(*named), {})
    for job in workflow_jobs(config)[1]:
        study = Path(job.target).parent.relative_to("results")
        _link_files(results / study, folder / "results" / study)


def _link_files(source: Path, target: Path) -> None:
    """Make a folder with links to the files of another one, if that exists, except declared outputs."""
    target.mkdir(parents=True, exist_ok=True)
    for path in source.absolute().iterdir() if source.is_dir() else ():
        if path.is_file() and path.name not in DECLARED:
            (target / path.name).symlink_to(path)


def _known_meta(folder: Path) -> DatasetMeta:
    try:
        return read_meta(folder)
    except (OSError, DataError):
        return DatasetMeta(digest=NOT_STAGED)


_ERROR_OF_JOB = re.compile(
    r"^Error in rule \w+:\n +message: (.*?)\n +jobid:.*?\n +output: (.*?)$", re.MULTILINE | re.DOTALL
)
_ADVICE = re.compile(r" *For further error details see .*")
_WRAPPING = re.compile(r"^(Job submission failed with exception|Exception in run_job for rule \w+): ")


def find_words(job: WorkflowJob, output: str) -> str:
    """What Snakemake printed about a job that it did not submit, or its first error."""
    for message, files in _ERROR_OF_JOB.findall(output):
        if job.target in files.split(", "):
            return _WRAPPING.sub("", _ADVICE.sub("", message)).strip()
    return _first_error(output)


def _first_error(output: str) -> str:
    """Five lines of Snakemake's output from its first error on, or its last five lines."""
    lines = output.strip().splitlines()
    first = next((number for number, line in enumerate(lines) if re.search(r"Exception|Error", line)), len(lines) - 5)
    return "\n".join(lines[max(0, first) :][:5])


def group_refusals(found: Iterable[tuple[str, str]]) -> Iterator[Refusal]:
    """One refusal for all jobs that were refused with the same words."""
    by_words: dict[str, list[str]] = {}
    for job, words in found:
        by_words.setdefault(words, []).append(job)
    yield from (Refusal(tuple(jobs), words) for words, jobs in by_words.items())
