"""What another Snakemake has made since this one decided on its jobs stays."""

import asyncio
from pathlib import Path
from types import SimpleNamespace

import pytest
from snakemake.jobs import Job
from trainyard.cli import kept_outputs
from trainyard.cli.kept_outputs import keep_outputs_of_others
from trainyard.utils.files import atomic_write


class Output(str):
    """As much of a file of Snakemake as is used."""

    async def exists(self):
        return Path(self).exists()

    async def remove(self, **_):
        Path(self).unlink(missing_ok=True)


class Made(Job):
    """A job of Snakemake, as far as its files go."""

    output = log = rule = None

    def __init__(self):
        pass


@pytest.fixture
def job(tmp_path, monkeypatch):
    monkeypatch.setattr(kept_outputs, "_decided_on", {})
    for name in ("remove_existing_output", "cleanup"):
        monkeypatch.setattr(Job, name, getattr(Job, name))  # restored afterwards
    made = Made()
    made.output = [Output(tmp_path / "old.csv"), Output(tmp_path / "new.csv")]
    made.log = [Output(tmp_path / "job.log")]
    return made


def decide(job):
    """Decide that the job must run; `new.csv` is missing."""
    Path(job.output[0]).write_text("out of date")
    missing = {job.output[1]}
    keep_outputs_of_others(
        SimpleNamespace(needrun_jobs=lambda: [job], reason=lambda _: SimpleNamespace(missing_output=missing))
    )


def write(path):
    with atomic_write(Path(path)) as file:
        file.write("of another Snakemake")


def remove(job, step):
    asyncio.run(job.remove_existing_output() if step == "before" else job.cleanup([]))


def kept(job):
    return [Path(output).name for output in job.output if Path(output).exists()]


@pytest.mark.parametrize("step", ["before", "after its failure"])
def test_outputs_that_another_snakemake_has_made_since_stay(job, step):
    decide(job)
    remove(job, step)
    assert kept(job) == [], "what is out of date is removed"
    decide(job)
    for output in job.output:
        write(output)
    remove(job, step)
    assert kept(job) == ["old.csv", "new.csv"]


def test_the_log_of_an_earlier_job_is_removed(job):
    decide(job)
    Path(job.log[0]).write_text("earlier")
    remove(job, "before")
    assert not Path(job.log[0]).exists()
